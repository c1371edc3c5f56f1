"""`habana_frameworks.torch.hpex.experimental.transformer_engine`: modules that run in 8-bit floats on Gaudi. Here they run in the dtype of their inputs."""

from __future__ import annotations

from typing import Any

import torch

from habana_mp._gaudi.hpex.kernels import FusedSDPA

__all__ = ["FusedAttention", "Linear"]


class Linear(torch.nn.Linear):
    """``torch.nn.Linear``; with ``skip_weight_param_allocation`` the script sets weight and bias itself."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        params_dtype: torch.dtype | None = None,
        skip_weight_param_allocation: bool = False,
        **_: Any,
    ) -> None:
        device = "meta" if skip_weight_param_allocation else None
        super().__init__(in_features, out_features, bias, device=device, dtype=params_dtype)

    def forward(self, input: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:  # noqa: A002 - torch's name
        """As torch's; what says how to compute in 8 bits (is_first_microbatch, ...) is not used."""
        return super().forward(input)


class FusedAttention(torch.nn.Module):
    """``FusedSDPA`` as a module."""

    def __init__(
        self,
        scale: float | None = None,
        attention_dropout: float = 0.0,
        enable_recompute: bool = False,  # noqa: ARG002
    ) -> None:
        super().__init__()
        self.scale, self.attention_dropout = scale, attention_dropout

    def forward(  # noqa: PLR0917 - Habana's arguments
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        is_causal: bool = False,
        softmax_mode: str = "None",
    ) -> torch.Tensor:
        """The attention; dropout while it trains."""
        dropout = self.attention_dropout if self.training else 0.0
        return FusedSDPA.apply(query, key, value, attn_mask, dropout, is_causal, self.scale, softmax_mode)
