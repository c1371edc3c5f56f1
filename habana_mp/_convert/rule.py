"""What a policy says for one op of convert, whose homes share one rule."""

from __future__ import annotations

from typing import Any, NamedTuple

import habana_mp._core as _core
from habana_mp._policy.computing import computes_on
from habana_mp._policy.homes import Home
from habana_mp._policy.policy import Policy


class Rule(NamedTuple):
    """What the conversion in force says for one op: `Rule` of src/policy/decide.h, and the list line that said it."""

    action: int
    low: int
    listed: bool
    text: str


def rule_of(policy: Policy, places: list[Home], original: Any) -> Rule | None:
    """What a policy says for an op, None where it never casts anything there."""
    for name in dict.fromkeys(home.name for home in places):
        action, low, listed, listed_as, file, line = policy._core.resolve(name)
        if listed:
            where = (f"{file}:{line}" if line else file) or policy.name
            return Rule(action, low, True, f"{_core.ACTIONS[action]}: {listed_as}, {where}")
    if policy.rest == "inputs":
        return None
    computes = max(computes_on(home, original) for home in places)
    if computes < (2 if policy.rest == "first_input" else 1):
        return None
    return Rule(action, low, False, f"rest: {policy.rest}")
