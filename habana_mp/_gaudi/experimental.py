"""`habana_frameworks.torch.utils`: loading the device's libraries, and asking which Gaudi it is."""

from __future__ import annotations

import enum

__all__ = ["_get_device_type", "load_habana_module", "synDeviceType"]


def load_habana_module() -> None:
    """Do nothing: on Gaudi it loads the libraries that register the device with PyTorch (F220)."""


class synDeviceType(enum.IntEnum):  # noqa: N801 - Habana's name
    """The generations of the device. The numbers have no meaning here."""

    synDeviceGaudi = 1  # noqa: N815
    synDeviceGaudi2 = 2  # noqa: N815
    synDeviceGaudi3 = 3  # noqa: N815


def _get_device_type() -> synDeviceType:
    """Gaudi 2: scripts ask in order to work around what the first one lacks, and nothing is lacking here."""
    return synDeviceType.synDeviceGaudi2
