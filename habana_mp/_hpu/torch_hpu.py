"""What `torch.hpu` is while "hpu" stands for another device: Gaudi's names over the torch module of that device.

Names that are not here are that module's own (`torch.cuda.Event` is `torch.hpu.Event`). CPU has no figures of its own: there a
figure is the process's memory, and its peak.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch

import habana_mp._core as _core
from habana_mp import _torch_private
from habana_mp._hpu import gaudi_switches, graphs, metrics
from habana_mp._show import units

Device: TypeAlias = "torch.device | str | int | None"

NAMES = ("hpu", "habana")


def _mapped_to() -> str:
    device = _core.hpu_mapped_to()
    if device is None:
        raise RuntimeError('"hpu" is no longer a name of another device')
    return device


def _module() -> Any:
    return getattr(torch, _mapped_to())


def plain(device: Any) -> Any:
    """A device as torch's own Python code must see it, which looks at the type: cuda:1 for hpu:1. Anything else as it is."""
    if isinstance(device, str) and device.partition(":")[0] in NAMES:
        device = torch.device(device)
    if isinstance(device, torch.device) and device.type in NAMES:
        to = _mapped_to()
        return torch.device(to) if to == "cpu" or device.index is None else torch.device(to, device.index)
    return device


def _on_cpu() -> bool:
    return _mapped_to() == "cpu"


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


def is_initialized() -> bool:
    return True


def init() -> None:
    """Do nothing: torch does it at the first use."""


def is_bf16_supported() -> bool:
    return True


def is_autocast_hpu_enabled() -> bool:
    """Whether a region of ``torch.autocast("hpu")`` is on."""
    return torch.is_autocast_enabled("hpu")


def get_autocast_hpu_dtype() -> torch.dtype:
    """The dtype of the region, or of the next one."""
    return torch.get_autocast_dtype("hpu")


def device_count() -> int:
    return 1 if _on_cpu() else int(_module().device_count())


def current_device() -> int:
    return 0 if _on_cpu() else int(_module().current_device())


def set_device(device: Device) -> None:
    """Does nothing for CPU, of which there is one."""
    if not _on_cpu():
        _module().set_device(plain(device))


class _utils:  # noqa: N801 - as the modules of torch have it
    """What torch.load asks for the index of a device name."""

    @staticmethod
    def _get_device_index(device: Device, optional: bool = False) -> int:
        index = plain(torch.device("hpu") if device is None else device)
        return 0 if _on_cpu() else _torch_private.device_index(_module(), index, optional)


def get_device_name(device: Device = None) -> str:
    """Of the device in truth."""
    return "cpu" if _on_cpu() else str(_module().get_device_name(plain(device)))


def default_stream(device: Device = None) -> Any:
    return _STREAM if _on_cpu() else _module().default_stream(plain(device))


class CpuStream(torch.cpu.Stream):
    """``torch.hpu.Stream`` on CPU, where each op has ended when its call returns."""

    def __init__(self, device: Device = None, priority: int = -1) -> None:  # noqa: ARG002 - torch's argument
        super().__init__(priority)

    def synchronize(self) -> None:
        """There is nothing to wait for."""

    def query(self) -> bool:
        return True

    def record_event(self, event: CpuEvent | None = None) -> CpuEvent:  # type: ignore[override]
        event = CpuEvent() if event is None else event
        event.record(self)
        return event


class CpuEvent(torch.cpu.Event):
    """``torch.hpu.Event`` on CPU: a time, because all work is done when it is recorded."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:  # noqa: ARG002 - torch's arguments
        self._seconds = 0.0

    def record(self, stream: Any = None) -> None:  # noqa: ARG002 - torch's argument
        self._seconds = time.perf_counter()

    def elapsed_time(self, end_event: CpuEvent) -> float:
        """Milliseconds from this event to the other."""
        return (end_event._seconds - self._seconds) * 1e3


def _current_stream(device: Device = None) -> CpuStream:  # noqa: ARG001 - torch's argument
    stream = torch.cpu.current_stream()  # torch.cpu's own until `with torch.hpu.stream(...)`
    return stream if isinstance(stream, CpuStream) else _STREAM


def _cpu_properties(device: Device = None) -> types.SimpleNamespace:
    return types.SimpleNamespace(name=get_device_name(device), total_memory=mem_get_info(device)[1])


_STREAM = CpuStream()
# What torch.cpu lacks, or has without what Gaudi's has.
_OF_CPU = {
    "Event": CpuEvent,
    "Stream": CpuStream,
    "current_stream": _current_stream,
    "device": contextlib.nullcontext,
    "default_generators": (torch.default_generator,),
    "device_of": contextlib.nullcontext,
    "get_device_properties": _cpu_properties,
}


# Random numbers


def manual_seed(seed: int) -> None:
    """Seed the generator of the current device."""
    if _on_cpu():
        torch.default_generator.manual_seed(seed)
    else:
        _module().manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all devices."""
    manual_seed(seed) if _on_cpu() else _module().manual_seed_all(seed)


def seed() -> None:
    """Seed with a random number."""
    torch.default_generator.seed() if _on_cpu() else _module().seed()


def seed_all() -> None:
    seed() if _on_cpu() else _module().seed_all()


def initial_seed() -> int:
    return int(torch.default_generator.initial_seed() if _on_cpu() else _module().initial_seed())


def get_rng_state(device: Device = "hpu") -> torch.Tensor:
    state: torch.Tensor = torch.get_rng_state() if _on_cpu() else _module().get_rng_state(plain(device))
    return state


def set_rng_state(new_state: torch.Tensor, device: Device = "hpu") -> None:
    torch.set_rng_state(new_state) if _on_cpu() else _module().set_rng_state(new_state, plain(device))


def get_rng_state_all() -> list[torch.Tensor]:
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(new_states: Sequence[torch.Tensor]) -> None:
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


# Memory


def _of_process() -> dict[str, int]:
    """VmRSS, what is resident now, and VmHWM, the most that was, in bytes; the system may note the peak late."""
    lines = (line.partition(":") for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(value.split()[0]) * 1024 for name, _, value in lines if name in ("VmRSS", "VmHWM")}


def memory_allocated(device: Device = None) -> int:
    """Bytes in use."""
    return _of_process()["VmRSS"] if _on_cpu() else int(_module().memory_allocated(plain(device)))


def max_memory_allocated(device: Device = None) -> int:
    """The most bytes in use since the start or ``reset_peak_memory_stats``."""
    return max(_of_process().values()) if _on_cpu() else int(_module().max_memory_allocated(plain(device)))


def memory_reserved(device: Device = None) -> int:
    return memory_allocated() if _on_cpu() else int(_module().memory_reserved(plain(device)))


def max_memory_reserved(device: Device = None) -> int:
    return max_memory_allocated() if _on_cpu() else int(_module().max_memory_reserved(plain(device)))


def reset_peak_memory_stats(device: Device = None) -> None:
    if _on_cpu():
        with contextlib.suppress(OSError):  # where the system permits it
            Path("/proc/self/clear_refs").write_text("5")  # man 5 proc: the peak becomes what is resident now
    else:
        _module().reset_peak_memory_stats(plain(device))


reset_max_memory_allocated = reset_peak_memory_stats


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Nothing is accumulated for CPU."""
    if not _on_cpu():
        _module().reset_accumulated_memory_stats(plain(device))


def empty_cache() -> None:
    if not _on_cpu():
        _module().empty_cache()


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Free and all memory of the device, in bytes."""
    if _on_cpu():
        page = os.sysconf("SC_PAGE_SIZE")
        return page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES")
    free, total = _module().mem_get_info(plain(device))
    return int(free), int(total)


def memory_stats(device: Device = None) -> dict[str, int]:
    """Bytes, by Gaudi's keys."""
    return {
        "Limit": mem_get_info(device)[1],
        "InUse": memory_allocated(device),
        "MaxInUse": max_memory_allocated(device),
    }


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    if not _on_cpu():
        return str(_module().memory_summary(plain(device), abbreviated))
    return "\n".join(f"{key:<10}{units.size(value):>12}" for key, value in memory_stats().items())


def _of_gaudi(name: str) -> Any:
    """What Gaudi's module has and no other of torch; None where it is not of these."""
    if name in _ALIASES:
        return sys.modules[__name__]
    if name in _MODULES:
        return _MODULES[name]
    return getattr(graphs, name) if name in graphs.__all__ else gaudi_switches.switch_named("hpu", name)


_ALIASES = ("hpu", "memory", "random")  # torch.cuda.memory and torch.cuda.random have functions of torch.cuda
_MODULES = {"graphs": graphs, "metrics": metrics}


def __dir__() -> list[str]:
    own = {name for name, value in globals().items() if isinstance(value, types.FunctionType) and name[0] != "_"}
    own |= {*_OF_CPU, *_ALIASES, *graphs.__all__, *gaudi_switches.names_of("hpu"), *_MODULES, "stream"}
    return sorted(own - {"asked_by_library", "plain"})


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # Python asks for its own names and takes the plain answer
        raise AttributeError(name)
    if (own := _of_gaudi(name)) is not None:
        return own
    device, module = _mapped_to(), _module()
    if device == "cpu" and name in _OF_CPU:
        return _OF_CPU[name]
    if name in ("Stream", "Event"):  # torch.compile asks every device for these
        return getattr(module, name, getattr(torch, name))
    try:
        value = getattr(module, name)
    except AttributeError:
        raise AttributeError(
            f"torch.hpu.{name}: hpu is a name of {device} here, and torch.{device} has no {name!r}"
        ) from None
    if not isinstance(value, types.FunctionType):
        return value

    @functools.wraps(value)
    def with_plain_devices(*args: Any, **kwargs: Any) -> Any:
        return value(*map(plain, args), **{key: plain(argument) for key, argument in kwargs.items()})

    return with_plain_devices
