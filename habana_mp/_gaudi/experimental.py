"""`habana_frameworks.torch.utils.experimental`: asking which Gaudi it is, and what it can do."""

from __future__ import annotations

import enum

import torch

from habana_mp._hpu import torch_hpu as hpu
from habana_mp._hpu.graphs import nothing

__all__ = [
    "_data_ptr",
    "_get_device_type",
    "detect_recompilation_auto_model",
    "hpu",
    "synDeviceType",
]


synDeviceType = enum.IntEnum("synDeviceType", "synDeviceGaudi synDeviceGaudi2 synDeviceGaudi3 synDeviceGreco")  # noqa: N816
synDeviceType.__doc__ = "The generations of the device. The numbers have no meaning here."


def _get_device_type() -> synDeviceType:
    """Gaudi 2: scripts ask in order to work around what the first one lacks, and nothing is lacking here."""
    return synDeviceType.synDeviceGaudi2


def _data_ptr(tensor: torch.Tensor) -> int:
    """The address of a tensor's first element."""
    return tensor.data_ptr()


def detect_recompilation_auto_model(model: torch.nn.Module, *_: object, **__: object) -> torch.nn.Module:
    """The model as it is, with the method ``analyse_dynamicity``, which does nothing: no graph is compiled here."""
    model.analyse_dynamicity = nothing  # type: ignore[assignment]
    return model
