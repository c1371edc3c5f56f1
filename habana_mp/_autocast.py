"""``autocast``: a policy in force for a block, on this thread, at torch's dispatcher (F19 to F36, D28 to D33).

What is in force where, and what a region changes, is src/torch/autocast_state.h; the casts are src/torch/autocast_kernel.h.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._contextlib import _DecoratorContextManager

from habana_mp import _core, _export, _guests, _log, _traced, cache
from habana_mp._convert import give_way
from habana_mp._gaudi_config import SUFFIX
from habana_mp._list_file import read_list, warn
from habana_mp._policy import Policy, replace_preset

# D28, D32: what policy=None is.
_PRESET_OF = {"cpu": "cpu", "cuda": "cuda", "xpu": "xpu", "hpu": "hpu-autocast"}
_DTYPES = (torch.bfloat16, torch.float16)
_HPU = "hpu-autocast"


if TYPE_CHECKING:
    from typing_extensions import Self


class autocast(_DecoratorContextManager):  # noqa: N801 - named as torch.autocast is
    """Run ops in mixed precision inside a block or a decorated function, by a policy: ``torch.autocast`` with lists of your own.

    It acts where every call of an op passes, also those from C++, on this thread alone. Ops of the policy's lists run in its low
    dtype, in float32, or in the widest dtype of their inputs; all others run in the dtypes of their inputs. Left alone as well:
    in-place calls, calls with ``dtype=`` or ``out=``, and calls with a float64 or complex tensor. Weights stay as they are.

    Regions nest, with one another and with ``torch.autocast``: the inner one rules. One instance may be nested in itself, serve
    several threads and decorate recursive functions. ``disable_casts`` switches casts off inside as well.

    Args:
        device_type: "cpu", "cuda", "xpu", "hpu", or the name of a backend of your own: whose tensors are cast. "hpu" on a machine
            without one acts on the tensors of every device.
        dtype: what ops of the lower list run in, ``torch.bfloat16`` or ``torch.float16``; by default the policy's, and for "cpu" and
            "cuda" without a policy what ``torch.get_autocast_dtype`` says. Another one is refused with a warning, and the region is off.
        enabled: False switches autocast off inside.
        cache_enabled: whether casts of weights are kept between calls; on unless the policy says otherwise.
        policy: a ``Policy``, or the name or path of one. By default that of the device type: torch's own lists for "cpu" and "cuda",
            "xpu" and "hpu-autocast" for these; a backend of your own has none.

    Raises:
        ValueError: a device_type that is no string, or a policy that is none.
        TypeError: a dtype that is none, or enabled or cache_enabled that are no bool.
        RuntimeError: a device type that autocast is not for.

    >>> with hmp.autocast("cpu", policy="hpu-autocast"):
    ...     loss = loss_function(model(x), y)

    See Also:
        convert, disable_casts, set_policies, Policy
    """

    def __init__(
        self,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
        *,
        policy: Policy | str | os.PathLike[str] | None = None,
    ) -> None:
        self._made_of: tuple[Any, ...] = device_type, dtype, enabled, cache_enabled, policy
        if torch.compiler.is_dynamo_compiling():
            named = policy._text if isinstance(policy, Policy) else policy
            self._key = _traced_region(device_type, dtype, enabled, cache_enabled, named)
        else:
            self._region, self._key = _region(device_type, dtype, enabled, cache_enabled, policy)

    @classmethod
    def current(cls) -> autocast:
        """What is in force on this thread, for another one to be in: a new thread starts with autocast off (F142).

        >>> state = hmp.autocast.current()
        >>> def work():
        ...     with state:
        ...         return model(x)
        """
        state = cls.__new__(cls)
        state._region = _core.current_autocast()
        state._key = _traced.remember(state._region)
        return state

    def __reduce__(self) -> tuple[Any, ...]:
        if not hasattr(self, "_made_of"):
            raise TypeError("what hmp.autocast.current() gives belongs to this process: it is not copied or pickled")
        *others, policy = self._made_of
        return functools.partial(autocast, *others, policy=policy), ()

    # A with statement runs C in place of these two, as it does for disable_casts (habana_mp/_disable.py). torch.compile reads them.
    def __enter__(self) -> Self:  # type: ignore[override]
        if torch.compiler.is_dynamo_compiling():
            _traced.enter(self._key)
        else:
            _core.enter_autocast(self._region, self)
        return self

    def __exit__(self, *exc: object) -> None:
        if torch.compiler.is_dynamo_compiling():
            _traced.leave(self._key)
        else:
            _core.leave_autocast(self)

    def __getattr__(self, name: str) -> Any:
        # What traced code made, and runs on untraced where a graph breaks, has the key alone.
        if name == "_region":
            return _traced.region(self.__dict__["_key"])
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def clone(self) -> autocast:
        """What a decorated function is in each time that it runs: a region holds no state of its own (D33)."""
        # torch.compile enters only what it saw made.
        return _Traced(self._key) if torch.compiler.is_dynamo_compiling() else self


# What a policy keeps of the regions made with it, by their other arguments: a loop makes one in every step.
_Made = dict[tuple[str, torch.dtype, bool, bool], tuple[Any, str]]


def _region(
    device_type: str,
    dtype: torch.dtype | None,
    enabled: bool,
    cache_enabled: bool | None,
    policy: Policy | str | os.PathLike[str] | None,
) -> tuple[Any, str]:
    """What a region sets, and the name by which traced code finds it."""
    device = _device(device_type)
    if policy is not None and not isinstance(policy, (Policy, str, os.PathLike)):
        raise ValueError(f"policy is a Policy, the name of a preset or the path of a folder, not {policy!r}")
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype is torch.bfloat16 or torch.float16, not {dtype!r} (a policy is given as policy=)")
    if not isinstance(enabled, bool) or not isinstance(cache_enabled, (bool, type(None))):
        raise TypeError(f"enabled and cache_enabled are True or False, not {enabled!r} and {cache_enabled!r}")
    chosen = policy if isinstance(policy, Policy) else _named(_default(device) if policy is None else policy)
    if dtype is None:
        # A region round this one, or torch.set_autocast_dtype, may have chosen for the device.
        dtype = torch.get_autocast_dtype(device) if policy is None and device in ("cpu", "cuda") else chosen.low_dtype
    _prepare()
    made: _Made = chosen.__dict__.setdefault("_regions", {})
    cached = cache_enabled is not False and chosen.cached
    kept = made.get((device, dtype, enabled, cached))
    if kept is not None:
        return kept
    accepted = not enabled or is_accepted(device, dtype, chosen)
    rules = rules_of(chosen, dtype) if enabled and accepted else None
    region = _core.autocast_region([(each, dtype, rules) for each in acts_on(device)], cached)
    found = region, _traced.remember(region)
    if accepted:  # else each one warns
        made[device, dtype, enabled, cached] = found
    return found


def _prepare() -> None:
    give_way()
    if not _core.log_level() and _core.environment_has(_log.VARIABLE):
        _log.open_log(False)
    _guests.serve_autocast()
    cache._open_for_autocast()


def _traced_region(
    device_type: str,
    dtype: torch.dtype | None,
    enabled: bool,
    cache_enabled: bool | None,
    policy: str | os.PathLike[str] | None,
) -> str:
    """Run by torch.compile while it traces."""
    region, key = _region(device_type, dtype, enabled, cache_enabled, policy)
    _traced.keep(key, region)
    return key


_traced_region._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _device(device_type: object) -> str:
    if not isinstance(device_type, str):
        raise ValueError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")  # noqa: TRY004 - as torch does (F34)
    own = torch._C._get_privateuse1_backend_name()
    device = device_type.partition(":")[0]
    if device not in _PRESET_OF and device != own:
        raise RuntimeError(
            f"User specified an unsupported autocast device_type '{device_type}': accepted are {', '.join(_PRESET_OF)} and {own}"
        )
    return device


def _default(device: str) -> str:
    if device not in _PRESET_OF:
        raise ValueError(f"no policy is known for {device!r}: give one, as policy='torch-cuda'")
    return _PRESET_OF[device]


def acts_on(device: str) -> list[str]:
    """D28: a region for HPU on a machine without one is for the tensors' own devices."""
    if device != "hpu":
        return [device]
    hpu = getattr(torch, "hpu", None)
    if _core.hpu_mapped_to() is None and hpu is not None and hpu.is_available():
        return ["hpu"]
    return devices()


def devices() -> list[str]:
    """The device types that autocast is for."""
    return [*_PRESET_OF, torch._C._get_privateuse1_backend_name()]


def is_accepted(device: str, dtype: torch.dtype, policy: Policy) -> bool:
    """Whether a policy runs in a low dtype; warns where it does not, as torch does (F36, D29)."""
    if dtype not in policy.low_dtypes:
        name = policy.name if dtype in _DTYPES else device.upper()
        warn(
            f"In {name} autocast, but the target dtype {dtype} is not supported. Disabling autocast.\n"
            f"{name} Autocast only supports dtypes of {', '.join(map(str, policy.low_dtypes))} currently."
        )
        return False
    cuda = torch.cuda
    if device == "cuda" and dtype is torch.bfloat16 and cuda.is_available() and not cuda.is_bf16_supported():
        raise RuntimeError("Current CUDA Device does not support bfloat16. Please switch dtype to float16.")
    return True


_loaded: dict[str, Policy] = {}


def _named(name_or_path: str | os.PathLike[str]) -> Policy:
    """A policy by name or path. Presets are kept: a region is made in every step of a training loop."""
    if not isinstance(name_or_path, str):
        return Policy.load(name_or_path)
    policy = _loaded.get(name_or_path)
    if policy is None:
        policy = Policy.load(name_or_path)
        if not (os.path.isdir(name_or_path) or name_or_path.endswith(SUFFIX) or " " in name_or_path):  # noqa: PTH112 - as Policy.load
            _loaded[name_or_path] = policy
    return policy


def rules_of(policy: Policy, dtype: torch.dtype) -> Any:
    """The policy made ready for the dispatcher, with another low dtype where one is asked for; kept with it."""
    made: dict[torch.dtype, Any] = policy.__dict__.setdefault("_rules", {})
    rules = made.get(dtype)
    if rules is None:
        rules = made[dtype] = _core.autocast_rules(policy.with_low_dtype(dtype)._core)
    return rules


class _Traced(autocast):
    """A region made before, in traced code."""

    def __init__(self, key: str) -> None:
        self._key = key


# D30: what the lists of hpu-autocast are replaced with, by the names of HPU's releases, the newer ones first.
LIST_VARIABLES = {
    "lower": ("PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST", "LOWER_LIST"),
    "fp32": ("PT_HPU_AUTOCAST_FP32_OPS_LIST", "FP32_LIST"),
}


_read: dict[str, tuple[str, str, bytes | None]] = {}


def _content(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError):
        return None


def read_environment() -> None:
    """Read the lists that the environment names, where they are others than at the last time."""
    asked = {
        title: (variable, os.environ[variable], _content(os.environ[variable]))
        for title, variables in LIST_VARIABLES.items()
        if (variable := next(filter(os.environ.get, variables), None)) is not None
    }
    if asked == _read:
        return
    _read.clear()
    _read.update(asked)
    replace_preset(_HPU, None)
    _loaded.pop(_HPU, None)
    given = {}
    for title, (variable, path, _) in asked.items():
        try:
            read_list(path)
            given[title] = path
        except (OSError, ValueError) as error:  # noqa: PERF203 - there are two
            warn(f"{variable}={path!r} is not used, the default list of {_HPU} stays: {error}")
    if given:
        try:
            replace_preset(_HPU, Policy.from_files(given.get("lower"), given.get("fp32"), base=_HPU))
        except ValueError as error:
            warn(f"the lists of the environment are not used, those of {_HPU} stay: {error}")


read_environment()
_export.record_casts()
_core.run_autocast_in_c(autocast.__enter__, autocast.__exit__)
