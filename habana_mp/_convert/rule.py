"""The rule of a policy for one op of convert, which all homes of the op share."""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any, NamedTuple

import habana_mp._core as _core
from habana_mp._policy.homes import Home, computes_on
from habana_mp._policy.policy import Policy


class Rule(NamedTuple):
    """The rule of the conversion in force for one op: `Rule` of src/policy/decide.h, and the list line that it comes from."""

    action: int
    low: int
    listed: bool
    text: str


def listed_rule(policy: Policy, found: _core.Rule) -> Rule | None:
    """What the core has found, None where no list names the op."""
    if found.entry is None:
        return None
    return Rule(found.action, found.low, True, policy._core.rule_text(found.entry))


class _Op(NamedTuple):
    """What is the same under every policy."""

    names: tuple[str, ...]
    computes_on: int
    refuses_mixed: bool  # tensors of different dtypes (D41)
    has_insides: bool  # it is made of others (D41), or may lack a kernel (D42)


@functools.cache
def _op(places: tuple[Home, ...], in_python: bool) -> _Op:
    names = tuple(dict.fromkeys(home.name for home in places))
    return _Op(
        names,
        max(computes_on(home, in_python) for home in places),
        any(map(_core.refuses_mixed, names)),
        any(_core.is_compound(name) or _core.may_lack_low_kernel(name) for name in names),
    )


def rule_of(policy: Policy, places: list[Home], original: Any) -> Rule | None:
    """The rule of a policy for an op, None where convert need not patch it."""
    op = _op(tuple(places), isinstance(original, FunctionType))
    for name in op.names:
        found = policy._core.resolve(name)
        if listed := listed_rule(policy, found):
            return listed
    action = found.action
    if policy.rest == "inputs" or op.computes_on < (2 if policy.rest == "first_input" else 1):
        if op.refuses_mixed:
            action = _PROMOTE
        elif op.has_insides:
            action = _INPUTS
        else:
            return None
    return Rule(action, found.low, False, policy._core.rest_text(action))


_INPUTS, _PROMOTE = _core.ACTIONS.index("inputs"), _core.ACTIONS.index("promote")
