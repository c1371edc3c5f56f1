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


class synDeviceType(enum.IntEnum):  # noqa: N801 - Habana's name
    """The generations of the device. The numbers have no meaning here."""

    synDeviceGaudi = 1  # noqa: N815
    synDeviceGaudi2 = 2  # noqa: N815
    synDeviceGaudi3 = 3  # noqa: N815
    synDeviceGreco = 4  # noqa: N815


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
