"""What a region of autocast sets: made of its arguments, and kept with its policy."""

from __future__ import annotations

import os
from typing import Any

import torch

import habana_mp._core as _core
from habana_mp import _weights
from habana_mp._autocast import neighbours
from habana_mp._autocast.devices import acts_on, checked_device, default_policy, devices
from habana_mp._autocast.unseen import warn_of_unseen
from habana_mp._cast import LOW_DTYPES, dtype_named, not_low
from habana_mp._convert.conversion import end_cli_default
from habana_mp._policy.policy import Policy
from habana_mp._scope import traced
from habana_mp._scope.placed import warn_if_nowhere
from habana_mp._show.warning import warn
from habana_mp._watch import log

# What a policy keeps of the regions made with it, by their other arguments: a loop makes one in every step.
_Made = dict[tuple[str, torch.dtype, bool, bool], tuple[Any, str]]


def region_of(
    device_type: str,
    dtype: torch.dtype | str | None,
    enabled: bool,
    cache_enabled: bool | None,
    policy: Policy | str | os.PathLike[str] | None,
) -> tuple[Any, str]:
    """What a region sets, and the name by which traced code finds it."""
    device = checked_device(device_type)
    if policy is not None and not isinstance(policy, (Policy, str, os.PathLike)):
        raise ValueError(f"policy must be a Policy, the name of a preset or the path of a folder, not {policy!r}")
    if isinstance(dtype, str) and (named := dtype_named(dtype)) is not None:
        dtype = getattr(torch, named)
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(f"{not_low(dtype, 'dtype')}. To pass a policy, use policy=")
    if not isinstance(enabled, bool):
        raise TypeError(f"enabled must be True or False, not {enabled!r}")
    if not isinstance(cache_enabled, (bool, type(None))):
        raise TypeError(f"cache_enabled must be True, False or None (what the policy has), not {cache_enabled!r}")
    chosen = policy if isinstance(policy, Policy) else Policy.load(default_policy(device) if policy is None else policy)
    if dtype is None:
        # A region round this one, or torch.set_autocast_dtype, may have chosen for the device.
        dtype = torch.get_autocast_dtype(device) if policy is None and device in ("cpu", "cuda") else chosen.low_dtype
    _prepare()
    made: _Made = chosen.__dict__.setdefault("_regions", {})
    cached = cache_enabled is not False and chosen.cached
    kept = made.get((device, dtype, enabled, cached))
    if kept is not None:
        return kept
    if enabled:
        warn_if_nowhere(chosen)
    accepted = not enabled or is_accepted(device, dtype, chosen)
    rules = rules_of(chosen, dtype) if enabled and accepted else None
    region = _core.autocast_region([(each, dtype, rules) for each in acts_on(device)], cached)
    found = region, traced.remember(region)
    # Else each one warns, or would have to without the fake tensors that this one is for.
    if accepted and (not enabled or device != "cuda" or torch.cuda.is_available()):
        made[device, dtype, enabled, cached] = found
    return found


def _prepare() -> None:
    end_cli_default()
    if not _core.log_level() and _core.environment_has(log.VARIABLE):
        log.open_for_region()
    neighbours.prepare()
    _weights.open_for_autocast()


def is_accepted(device: str, dtype: torch.dtype, policy: Policy) -> bool:
    """Whether a policy runs in a low dtype; warns where it does not, as torch does."""  # (F36, D29)
    if dtype not in policy.low_dtypes:
        name = policy.name if dtype in LOW_DTYPES else device.upper()
        warn(
            f"In {name} autocast, but the target dtype {dtype} is not supported. Disabling autocast.\n"
            f"{name} Autocast only supports dtypes of {', '.join(map(str, policy.low_dtypes))} currently.\n"
            f"{_remedy(dtype, policy)}"
        )
        return False
    if device == "cuda" and not torch.cuda.is_available():
        if not _makes_tensors(device):
            warn(
                'CUDA is not available. Disabling autocast.\nNothing is cast. For tensors on the CPU, use hmp.autocast("cpu").'
            )
            return False
    elif device == "cuda" and dtype is torch.bfloat16 and not torch.cuda.is_bf16_supported():
        raise RuntimeError("Current CUDA Device does not support bfloat16. Please switch dtype to float16.")
    return True


def _makes_tensors(device: str) -> bool:
    """Fake ones, for example, are of devices that the machine does not have."""
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError):
        return False
    return True


def _remedy(dtype: torch.dtype, policy: Policy) -> str:
    instead = " or ".join(f"dtype={low}" for low in policy.low_dtypes)
    if dtype not in LOW_DTYPES:
        return f"Nothing is cast. Pass {instead}, or, to run all ops as they are, enabled=False."
    return f'Nothing is cast. Pass {instead}, or a policy for {dtype} such as policy="balanced".'


def rules_of(policy: Policy, dtype: torch.dtype) -> Any:
    """The policy made ready for the dispatcher, with another low dtype where one is asked for; kept with it."""
    made: dict[torch.dtype, Any] = policy.__dict__.setdefault("_rules", {})
    rules = made.get(dtype)
    if rules is None:
        warn_of_unseen(policy)
        rules = made[dtype] = _core.autocast_rules(policy.with_low_dtype(dtype)._core)
    return rules


def region_policy() -> tuple[Policy | None, str]:
    """The policy of the innermost region of autocast on this thread, and its device type."""
    for device in devices():
        found = _core.autocast_policy(device)
        if found is not None:
            return Policy(found), device
    return None, ""
