"""The rule of a policy for one op of convert, which all homes of the op share."""

from __future__ import annotations

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


def rule_of(policy: Policy, places: list[Home], original: Any) -> Rule | None:
    """The rule of a policy for an op, None where convert need not patch it."""
    for name in dict.fromkeys(home.name for home in places):
        found = policy._core.resolve(name)
        if listed := listed_rule(policy, found):
            return listed
    action = found.action
    computes = max(computes_on(home, original) for home in places)
    if policy.rest == "inputs" or computes < (2 if policy.rest == "first_input" else 1):
        if any(_core.refuses_mixed(home.name) for home in places):
            action = _PROMOTE  # D41
        # For what it is made of (D41), or lest it lack a kernel (D42).
        elif any(_core.is_compound(home.name) or _core.may_lack_low_kernel(home.name) for home in places):
            action = _INPUTS
        else:
            return None
    return Rule(action, found.low, False, policy._core.rest_text(action))


_INPUTS, _PROMOTE = _core.ACTIONS.index("inputs"), _core.ACTIONS.index("promote")
