"""Policies whose names for some modules ("mul in *.rotary_emb") have been put on models. Those of others decide nothing, which nobody would know."""

from __future__ import annotations

from habana_mp._policy.policy import Policy
from habana_mp._show.warning import warn

_MOST_SHOWN = 3
# By what decides in modules: neither the name of a policy nor its low dtype, which convert and regions may replace.
_placed: set[str] = set()
_warned: set[str] = set()


def placed(policy: Policy) -> None:
    """The names are put on models from now on."""
    _placed.add(_decisions(policy))


def warn_if_nowhere(policy: Policy) -> None:
    """Once for each policy that has such names and is on no model."""
    if " limited=" not in policy._text or _decisions(policy) in _placed | _warned:
        return
    _warned.add(_decisions(policy))
    lines = [line for lines in policy.limited.values() for line in lines]
    shown = ", ".join(lines[:_MOST_SHOWN]) + (", ..." if len(lines) > _MOST_SHOWN else "")
    advice = (
        "A model keeps the policy of the last such call. Call it again with this policy" if _placed else "Call it first"
    )
    warn(
        f"{policy.name} has names that are limited to modules ({shown}). They apply only in models that "
        f"hmp.set_policies(model, policy) was called on. {advice}"
    )


def _decisions(policy: Policy) -> str:
    return policy._text.partition(" rest=")[2]
