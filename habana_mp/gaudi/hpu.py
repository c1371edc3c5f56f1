"""`habana_frameworks.torch.hpu`: the device that stands for an HPU, by torch's accelerator, or the CPU with the memory of this process."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import torch

from habana_mp import _units
from habana_mp.gaudi._device import device

__all__ = [
    "current_device",
    "device_count",
    "get_device_name",
    "is_available",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "memory_allocated",
    "memory_stats",
    "memory_summary",
    "reset_peak_memory_stats",
    "synchronize",
]

_PROCESS = Path("/proc/self")

_Device = torch.device | str | int | None


def is_available() -> bool:
    """True: there is a device that stands for it."""
    return True


def device_count() -> int:
    """How many devices of the kind that stands for it; 1 for the CPU."""
    return 1 if _is_cpu() else torch.accelerator.device_count()


def current_device() -> int:
    return 0 if _is_cpu() else torch.accelerator.current_device_index()


def get_device_name(device: _Device = None) -> str:  # noqa: ARG001 - Gaudi's argument
    """The kind of device that stands for it."""
    return f"habana_mp.gaudi on {_device_type()}"


def synchronize(device: _Device = None) -> None:
    """Wait until all work on the device is done."""
    if not _is_cpu():
        torch.accelerator.synchronize(_index(device))


def manual_seed(seed: int) -> None:
    torch.manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    torch.manual_seed(seed)


def memory_allocated(device: _Device = None) -> int:
    """Bytes in use. On the CPU, what this process has in memory."""
    return _of_process()["VmRSS"] if _is_cpu() else torch.accelerator.memory_allocated(_index(device))


def max_memory_allocated(device: _Device = None) -> int:
    """The most bytes that were in use, since the start or ``reset_peak_memory_stats``."""
    return max(_of_process().values()) if _is_cpu() else torch.accelerator.max_memory_allocated(_index(device))


def reset_peak_memory_stats(device: _Device = None) -> None:
    """Let ``max_memory_allocated`` begin again. On the CPU, where the system permits it."""
    if not _is_cpu():
        torch.accelerator.reset_peak_memory_stats(_index(device))
        return
    with contextlib.suppress(OSError):
        (_PROCESS / "clear_refs").write_text("5")  # man 5 proc: the peak becomes what is resident now


def memory_stats(device: _Device = None) -> dict[str, int]:
    """Limit, InUse and MaxInUse in bytes, under Gaudi's names."""
    return {
        "Limit": _limit(device),
        "InUse": memory_allocated(device),
        "MaxInUse": max_memory_allocated(device),
    }


def memory_summary(device: _Device = None, abbreviated: bool = False) -> str:  # noqa: ARG001 - torch's argument
    """``memory_stats`` to print."""
    return "\n".join(f"{name:<10}{_units.size(value):>12}" for name, value in memory_stats(device).items())


def _limit(device: _Device) -> int:
    if _is_cpu():
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return torch.accelerator.get_memory_info(_index(device))[1]


def _of_process() -> dict[str, int]:
    """What is resident now, and the most that was; the system may note the peak late."""
    lines = (line.partition(":") for line in (_PROCESS / "status").read_text().splitlines())
    return {name: int(value.split()[0]) * 1024 for name, _, value in lines if name in ("VmRSS", "VmHWM")}


def _device_type() -> str:
    return device().type


def _is_cpu() -> bool:
    return _device_type() == "cpu"


def _index(device: _Device) -> Any:
    """The index alone: its name is that of an HPU."""
    if isinstance(device, str):
        device = torch.device(device) if device.partition(":")[2] else None
    return device.index if isinstance(device, torch.device) else device
