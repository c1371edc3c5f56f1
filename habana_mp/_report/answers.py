"""What the core asks of Python while it counts, each time once for an op in a module, and which policies the open reports have met."""

from __future__ import annotations

import threading
from typing import TypeAlias

import torch

import habana_mp._core as _core
from habana_mp._autocast.regions import region_policy
from habana_mp._convert.patched_op import PatchedOp
from habana_mp._policy.names import known_names
from habana_mp._policy.policy import Policy
from habana_mp._report.findings import rule_text
from habana_mp._scope import in_force
from habana_mp._watch import (
    where,  # noqa: F401 - the core asks it: a child that a fork makes while another thread imports it waits for good
)
from habana_mp._watch.modules import unwatch_modules, watch_modules

# By text and front end; each open report has such a dict.
Policies: TypeAlias = "dict[str, tuple[Policy, str]]"
_open: list[Policies] = []
_lock = threading.Lock()


def note_policies(into: Policies) -> None:
    """Have the policies that calls meet noted, until ``stop_noting``. Modules are watched while somebody has."""
    with _lock:
        if not _open:
            watch_modules()
        _open.append(into)


def stop_noting(into: Policies) -> None:
    with _lock:
        _open[:] = [each for each in _open if each is not into]
        if not _open:
            unwatch_modules()


def _name_of(op: PatchedOp) -> str:
    """The name of a patched op as lists spell it: "matmul" for torch.Tensor.__matmul__."""
    name = op.__name__
    if not name.startswith("__"):
        return name
    for level in _core.candidates(name):
        for spelling in level:
            if not spelling.startswith("__") and spelling in known_names() and hasattr(torch.Tensor, spelling):
                return spelling
    return name


def _converted() -> str:
    """The name of convert's policy."""
    policy = in_force.policy
    return "" if policy is None else _met(policy, "convert")


def _undecided(op: str, in_region: bool) -> tuple[str, int, int, bool, str]:
    """(policy, action, low, listed, rule) for an op of the dispatcher that no rule has decided."""
    policy = region_policy()[0] if in_region else in_force.policy
    if policy is None:
        return "", 0, 0, False, ""
    action, low, listed, listed_as, file, line = policy._core.resolve(op)
    text = rule_text(policy, _core.ACTIONS[action], listed_as, file, line) if listed else ""
    return _met(policy, "autocast" if in_region else "convert"), action, low, listed, text


def _met(policy: Policy, front_end: str) -> str:
    for policies in _open:
        policies.setdefault(str(policy) + front_end, (policy, front_end))
    return policy.name
