"""What `torch.hpu` has while "hpu" stands for the CPU: what torch.cpu lacks, or has without what Gaudi's has.

A figure of memory is the process's own. Devices that are given are not looked at: there is one.
"""

from __future__ import annotations

import contextlib
import os
import time
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from habana_mp._show import units

# ruff: noqa: ARG001, ARG002 - torch's arguments

NAMES = frozenset(
    "Event Stream current_device current_stream default_generators default_stream device device_of empty_cache get_device_name "
    "get_device_properties get_rng_state get_rng_state_all initial_seed manual_seed manual_seed_all max_memory_allocated max_memory_reserved "
    "mem_get_info memory_allocated memory_reserved memory_summary reset_accumulated_memory_stats reset_peak_memory_stats seed seed_all "
    "set_rng_state set_rng_state_all".split()
)
device = device_of = contextlib.nullcontext
default_generators = (torch.default_generator,)


def current_device() -> int:
    return 0


def get_device_name(device: Any = None) -> str:
    """Of the device in truth."""
    return "cpu"


def get_device_properties(device: Any = None) -> types.SimpleNamespace:
    return types.SimpleNamespace(name=get_device_name(), total_memory=mem_get_info()[1])


class Stream(torch.cpu.Stream):
    """Each op has ended when its call returns."""

    def __init__(self, device: Any = None, priority: int = -1) -> None:
        super().__init__(priority)

    def synchronize(self) -> None:
        """There is nothing to wait for."""

    def query(self) -> bool:
        return True

    def record_event(self, event: Event | None = None) -> Event:  # type: ignore[override]
        event = Event() if event is None else event
        event.record(self)
        return event


class Event(torch.cpu.Event):
    """A time, because all work is done when it is recorded."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._seconds = 0.0

    def record(self, stream: Any = None) -> None:
        self._seconds = time.perf_counter()

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to the other."""
        return (end_event._seconds - self._seconds) * 1e3


_STREAM = Stream()


def default_stream(device: Any = None) -> Stream:
    return _STREAM


def current_stream(device: Any = None) -> Stream:
    stream = torch.cpu.current_stream()  # torch.cpu's own until `with torch.hpu.stream(...)`
    return stream if isinstance(stream, Stream) else _STREAM


# Random numbers


def manual_seed(seed: int) -> None:
    torch.default_generator.manual_seed(seed)


def seed() -> None:
    """Seed with a random number."""
    torch.default_generator.seed()


manual_seed_all, seed_all, initial_seed = manual_seed, seed, torch.initial_seed


def get_rng_state(device: Any = None) -> torch.Tensor:
    return torch.get_rng_state()


def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
    torch.set_rng_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    return [torch.get_rng_state()]


def set_rng_state_all(new_states: Sequence[torch.Tensor]) -> None:
    for state in new_states:
        torch.set_rng_state(state)


# Memory


def _of_process() -> dict[str, int]:
    """VmRSS, what is resident now, and VmHWM, the most that was, in bytes; the system may note the peak late."""
    lines = (line.partition(":") for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(value.split()[0]) * 1024 for name, _, value in lines if name in ("VmRSS", "VmHWM")}


def memory_allocated(device: Any = None) -> int:
    """Bytes in use."""
    return _of_process()["VmRSS"]


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes in use since the start or ``reset_peak_memory_stats``."""
    return max(_of_process().values())


memory_reserved, max_memory_reserved = memory_allocated, max_memory_allocated


def reset_peak_memory_stats(device: Any = None) -> None:
    with contextlib.suppress(OSError):  # where the system permits it
        Path("/proc/self/clear_refs").write_text("5")  # man 5 proc: the peak becomes what is resident now


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Nothing is accumulated."""


def empty_cache() -> None:
    """There is none."""


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Free and all memory of the machine, in bytes."""
    page = os.sysconf("SC_PAGE_SIZE")
    return page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES")


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    figures = {"Limit": mem_get_info()[1], "InUse": memory_allocated(), "MaxInUse": max_memory_allocated()}
    return "\n".join(f"{key:<10}{units.size(value):>12}" for key, value in figures.items())
