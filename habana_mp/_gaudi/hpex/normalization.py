"""`habana_frameworks.torch.hpex.normalization`: gradient clipping and the RMS norm under Habana's names."""  # (F216, F217)

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

from habana_mp.hmp import disable_casts

__all__ = ["FusedClipNorm", "FusedRMSNorm"]


class FusedClipNorm:
    """Clips gradients by their global norm, as ``torch.nn.utils.clip_grad_norm_`` does.

    >>> clip = FusedClipNorm(model.parameters(), max_norm=1.0)
    >>> clip.clip_norm(model.parameters())

    Args:
        parameters: not used; on Gaudi buffers are made for them.
        max_norm: what the norm of all gradients together is brought down to.

    Raises:
        ValueError: max_norm is negative or no number.
    """

    def __init__(self, parameters: torch.Tensor | Iterable[torch.Tensor], max_norm: float) -> None:  # noqa: ARG002
        if not max_norm >= 0:
            raise ValueError(f"max_norm must be a number, 0 or more, not {max_norm!r}")
        self.max_norm = float(max_norm)

    @disable_casts()
    def clip_norm(self, parameters: torch.Tensor | Iterable[torch.Tensor]) -> torch.Tensor:
        """Scale the gradients in place. Returns the norm that they had."""
        return clip_grad_norm_(parameters, self.max_norm)


class FusedRMSNorm:
    """``torch.nn.functional.rms_norm`` over the last dimension."""

    @staticmethod
    def apply(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6, *_: Any) -> torch.Tensor:
        """The norm times ``weight``, of shape (E,)."""
        return functional.rms_norm(x, x.shape[-1:], weight, eps)
