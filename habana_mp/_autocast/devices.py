"""The device types that autocast is for, and those that a region acts on."""

from __future__ import annotations

import torch

import habana_mp._core as _core
from habana_mp._show.did_you_mean import did_you_mean, near
from habana_mp._torch_private import OWN_BACKEND

# D28, D32: what policy=None is.
_PRESET_OF = {"cpu": "cpu", "cuda": "cuda", "xpu": "xpu", "hpu": "hpu-autocast"}

# What people write for a device type.
_MEANT = {"gpu": "cuda", "nvidia": "cuda", "rocm": "cuda", "habana": "hpu", "gaudi": "hpu"}

_torch_own_backend = OWN_BACKEND.get("name")


def _own_backend() -> str:
    """The name of a device type that somebody else has registered."""
    return str(_torch_own_backend()) if OWN_BACKEND.works else "privateuseone"


def checked_device(device_type: object) -> str:
    if not isinstance(device_type, str):
        raise ValueError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")  # noqa: TRY004 - as torch does (F34)
    device = device_type.partition(":")[0]
    if device not in _PRESET_OF and device != (own := _own_backend()):
        accepted = [*_PRESET_OF, own]
        plain = device.strip().lower()
        plain = _MEANT.get(plain, plain)
        hint = did_you_mean([plain]) if plain in accepted else near(device, accepted, most=1)
        raise RuntimeError(
            f"User specified an unsupported autocast device_type '{device_type}': accepted are {', '.join(_PRESET_OF)} and {own}{hint}"
        )
    return device


def default_policy(device: str) -> str:
    if device not in _PRESET_OF:
        raise ValueError(f"there is no default policy for {device!r}: pass one, such as policy='torch-cuda'")
    return _PRESET_OF[device]


def acts_on(device: str) -> list[str]:
    """The device types of a region: one for HPU on a machine without one is for the tensors' own devices."""  # (D28)
    if device != "hpu":
        return [device]
    hpu = getattr(torch, "hpu", None)
    if _core.hpu_mapped_to() is None and hpu is not None and hpu.is_available():
        return ["hpu"]
    return devices()


def devices() -> list[str]:
    """The device types that autocast is for."""
    return [*_PRESET_OF, _own_backend()]
