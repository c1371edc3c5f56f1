"""What a policy says for one op of convert, whose homes share one rule."""

from __future__ import annotations

from typing import Any, NamedTuple

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
            return Rule(action, low, True, policy._core.rule_text(action, True, listed_as, file, line))
    if policy.rest == "inputs":
        return None
    computes = max(computes_on(home, original) for home in places)
    if computes < (2 if policy.rest == "first_input" else 1):
        return None
    return Rule(action, low, False, policy._core.rule_text(action, False, "", "", 0))
