"""Where and how a run was made: what its recording notes, and what two of them differ in."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import torch

from habana_mp._autocast.regions import region_policy
from habana_mp._evidence.recordings.form import About
from habana_mp._policy.policy import Policy
from habana_mp._scope import in_force

# The fields of a recording that are compared as they are, by the words for them.
_COMPARED = {
    "torch": "torch",
    "habana_mp": "habana_mp",
    "Python": "python",
    "machine": "machine",
    "CPU": "cpu",
    "instruction set": "instructions",
    "threads": "threads",
}


def about(policy: Policy | None) -> About:
    """What is recorded about a run of this process, under a policy."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return About(
        habana_mp=version("habana_mp"),
        torch=str(torch.__version__),
        python=platform.python_version(),
        machine=platform.machine(),
        cpu=cpu_name(),
        instructions=torch.backends.cpu.get_cpu_capability(),
        threads=torch.get_num_threads(),
        devices=["cpu", *([accelerator.type] if accelerator is not None else [])],
        policy="" if policy is None else str(policy),
        policy_name="no policy" if policy is None else policy.name,
    )


def cpu_name() -> str:
    able: Mapping[str, Any] = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return str(able.get("cpu_name", platform.processor() or platform.machine()))


def policy_here() -> Policy | None:
    """The policy in force on this thread: of a region, else of a conversion."""
    region, _ = region_policy()
    return in_force.policy if region is None else region


def recorded_policy(of: About | None) -> Policy | None:
    """The policy of a recorded run; None without one, or if this version of habana_mp cannot read it."""
    text = of.policy if of is not None else ""
    if not text.startswith("name="):  # no name and no path
        return None
    try:
        return Policy.load(text)
    except ValueError:
        return None


def environment_diff(a: About | None, b: About | None) -> dict[str, tuple[str, str]]:
    """What two runs were made with, where it differs: its name, and its value in run a and in run b."""
    if a is None or b is None:
        return {}
    pairs = {name: (str(getattr(a, field)), str(getattr(b, field))) for name, field in _COMPARED.items()}
    pairs["devices"] = (" ".join(a.devices), " ".join(b.devices))
    pairs["policy"] = (a.policy_name, b.policy_name)
    return {name: (first, second) for name, (first, second) in pairs.items() if first != second}
