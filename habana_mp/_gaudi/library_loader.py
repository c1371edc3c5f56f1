"""`habana_frameworks.torch.utils.library_loader`: asking for the device before it is used."""

from __future__ import annotations

from habana_mp._hpu import torch_hpu

__all__ = ["is_habana_avaialble", "is_habana_available"]


def is_habana_available() -> bool:
    """Whether a script may use "hpu": True, as of ``torch.hpu.is_available``."""
    return torch_hpu.is_available()


is_habana_avaialble = is_habana_available  # the name of older releases
