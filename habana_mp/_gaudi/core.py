"""`habana_frameworks.torch.core`: the bridge to a device that runs graphs. Most of its names are switches (`habana_mp/_hpu/gaudi_switches.py`)."""

from __future__ import annotations

from habana_mp._hpu import torch_hpu as hpu

__all__ = ["get_device_count", "hpu"]


def get_device_count() -> int:
    """How many devices "hpu" stands for: 1 for CPU."""
    return int(hpu.device_count())
