"""`...transformer_engine.recipe`: how tensors are scaled for 8-bit floats on Gaudi. Here nothing runs in 8 bits, so recipes are kept and not used."""

from __future__ import annotations

import enum
from typing import Any

__all__ = ["DelayedScaling", "Format"]


class Format(enum.Enum):
    """The formats of 8-bit floats: of the forward pass, and of gradients."""

    E4M3 = "e4m3"
    E5M2 = "e5m2"
    HYBRID = "hybrid"


class DelayedScaling:
    """A recipe with any options, which are its attributes."""

    def __init__(self, **options: Any) -> None:
        vars(self).update(options)
