"""Policies whose names for some modules ("mul in *.rotary_emb") have been put on models. Those of others decide nothing, which nobody would know."""

from __future__ import annotations

from habana_mp._policy.policy import Policy
from habana_mp._show.warning import warn

_MOST_SHOWN = 3
_placed: set[str] = set()


def placed(policy: Policy) -> None:
    """The names are put on models from now on."""
    _placed.add(_lines(policy))


def warn_if_nowhere(policy: Policy) -> None:
    """Once for each policy that has such names, none of them on a model."""
    if " limited=" not in policy._text or _lines(policy) in _placed:
        return
    placed(policy)
    lines = [line for lines in policy.limited.values() for line in lines]
    shown = ", ".join(lines[:_MOST_SHOWN]) + (", ..." if len(lines) > _MOST_SHOWN else "")
    warn(
        f"{policy.name} has names that are limited to modules ({shown}). They apply only in models that "
        "hmp.set_policies(model, policy) was called on. Call it first"
    )


def _lines(policy: Policy) -> str:
    return policy._text.rpartition(" limited=")[2]
