"""What `torch.hpu` is while "hpu" stands for another device: Gaudi's names over the torch module of that device.

Names that are not here are that module's own (`torch.cuda.Event` is `torch.hpu.Event`), and for the CPU those of cpu_device.py.
"""

from __future__ import annotations

import functools
import sys
import types
from typing import Any, TypeAlias

import torch

import habana_mp._core as _core
from habana_mp import _torch_private
from habana_mp._hpu import cpu_device, gaudi_switches, graphs, metrics

Device: TypeAlias = "torch.device | str | int | None"

NAMES = ("hpu", "habana")


def _mapped_to() -> str:
    device = _core.hpu_mapped_to()
    if device is None:
        raise RuntimeError('"hpu" is no longer a name of another device')
    return device


def plain(device: Any) -> Any:
    """A device as torch's own Python code must see it, which looks at the type: cuda:1 for hpu:1. Anything else as it is."""
    if isinstance(device, str) and device.partition(":")[0] in NAMES:
        device = torch.device(device)
    if isinstance(device, torch.device) and device.type in NAMES:
        to = _mapped_to()
        return torch.device(to) if to == "cpu" or device.index is None else torch.device(to, device.index)
    return device


# Libraries that make themselves ready for a Gaudi where they see one: they replace functions of torch, take other
# kernels and collectives. Where is_available() is False for them, they work with the device in truth.
_WORK_WITHOUT_HPU = (
    "accelerate.",
    "diffusers.",
    "peft.",
    "transformers.",
    *_torch_private.ASKING_FOR_HPU,
)


def asked_by_library(frame: types.FrameType | None) -> bool:
    """Whether the code of a frame is a library's that would make itself ready for a Gaudi."""
    return frame is not None and f"{frame.f_globals.get('__name__')}.".startswith(_WORK_WITHOUT_HPU)


@_torch_private.run_while_traced
def is_available() -> bool:
    """True, but for libraries that would make themselves ready for a Gaudi."""
    return not asked_by_library(_torch_private.calling_frame())


def is_autocast_hpu_enabled() -> bool:
    """Whether a region of ``torch.autocast("hpu")`` is on."""
    return torch.is_autocast_enabled("hpu")


def get_autocast_hpu_dtype() -> torch.dtype:
    """The dtype of the region, or of the next one."""
    return torch.get_autocast_dtype("hpu")


class _utils:  # noqa: N801 - as the modules of torch have it
    """What torch.load asks for the index of a device name."""

    @staticmethod
    def _get_device_index(device: Device, optional: bool = False) -> int:
        index, to = plain(torch.device("hpu") if device is None else device), _mapped_to()
        return 0 if to == "cpu" else _torch_private.device_index(getattr(torch, to), index, optional)


def memory_stats(device: Device = None) -> dict[str, int]:
    """Bytes, by Gaudi's keys."""
    figures: Any = sys.modules[__name__]  # those of the device
    return {
        "Limit": figures.mem_get_info(device)[1],
        "InUse": figures.memory_allocated(device),
        "MaxInUse": figures.max_memory_allocated(device),
    }


# Older names, which scripts and DeepSpeed use. torch.cuda warns of its own, and torch.xpu has none.
_FORMER = {
    "memory_cached": "memory_reserved",
    "max_memory_cached": "max_memory_reserved",
    "reset_max_memory_allocated": "reset_peak_memory_stats",
    "reset_max_memory_cached": "reset_peak_memory_stats",
}
_OF_GAUDI: dict[str, Any] = {
    "graphs": graphs,
    "metrics": metrics,
    **{name: getattr(graphs, name) for name in graphs.__all__},
    # torch.cuda.memory and torch.cuda.random have functions of torch.cuda
    **dict.fromkeys(("hpu", "memory", "random"), sys.modules[__name__]),
}


def __dir__() -> list[str]:
    own = {name for name, value in globals().items() if isinstance(value, types.FunctionType) and name[0] != "_"}
    own |= {
        *cpu_device.NAMES,
        *_FORMER,
        *gaudi_switches.names_of("hpu"),
        *_OF_GAUDI,
        "device_count",
        "set_device",
        "stream",
    }
    return sorted(own - {"asked_by_library", "plain"})


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # Python asks for its own names and takes the plain answer
        raise AttributeError(name)
    if name in _FORMER:
        return getattr(sys.modules[__name__], _FORMER[name])
    if (own := _OF_GAUDI.get(name) or gaudi_switches.switch_named("hpu", name)) is not None:
        return own
    try:
        device = _mapped_to()
    except RuntimeError as error:  # pickle asks all modules for names, and takes no other error
        raise AttributeError(str(error)) from None
    module = getattr(torch, device)
    if device == "cpu" and name in cpu_device.NAMES:
        return getattr(cpu_device, name)
    if name in ("Stream", "Event"):  # torch.compile asks every device for these
        return getattr(module, name, getattr(torch, name))
    try:
        value = getattr(module, name)
    except AttributeError:
        raise AttributeError(
            f"torch.hpu.{name}: hpu is a name of {device} here, and torch.{device} has no {name!r}"
        ) from None
    return _with_plain_devices(value) if isinstance(value, types.FunctionType) else value


@functools.cache  # the same function at each look, as of any module
def _with_plain_devices(function: types.FunctionType) -> Any:
    @functools.wraps(function)
    def with_plain_devices(*args: Any, **kwargs: Any) -> Any:
        return function(*map(plain, args), **{key: plain(argument) for key, argument in kwargs.items()})

    return with_plain_devices
