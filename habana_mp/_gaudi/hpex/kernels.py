"""`habana_frameworks.torch.hpex.kernels`: Habana's fused kernels, by torch's own ops."""

from __future__ import annotations

import enum
from typing import Any

import torch
from torch.nn import functional

from habana_mp._gaudi.hpex.sparse import EmbeddingBagPreproc, bags_of
from habana_mp.hmp import disable_casts

__all__ = [
    "CustomSoftmax",
    "EmbeddingBag",
    "EmbeddingBagPreProc",
    "EmbeddingBagPreproc",
    "FusedSDPA",
    "RotaryPosEmbeddingHelperV1",
    "RotaryPosEmbeddingHelperV2",
    "RotaryPosEmbeddingMode",
    "apply_rotary_pos_emb",
]


class FusedSDPA:
    """``torch.nn.functional.scaled_dot_product_attention`` by Habana's arguments."""

    @staticmethod
    def apply(  # noqa: PLR0917 - Habana's arguments
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        softmax_mode: str = "None",  # noqa: ARG004 - how it computes on Gaudi
        recompute_mode: bool | None = None,  # noqa: ARG004 - how it computes on Gaudi
        valid_seq_len: torch.Tensor | None = None,
        seq_padding_type: str = "left",
        return_dropout_mask: bool = False,
        return_attn_probs: bool = False,
        window_size: tuple[int, int] | None = (-1, -1),
        sink: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The attention, with grouped queries where there are fewer heads of keys.

        Args:
            query: shape (N, heads, L, E).
            key: shape (N, heads or fewer, S, E).
            value: shape (N, heads or fewer, S, E).
            attn_mask: added to the scores, or of bools; it may go with ``is_causal``.
            dropout_p: as torch takes it.
            is_causal: as torch takes it.
            scale: as torch takes it.
            softmax_mode: not used.
            recompute_mode: not used.
            valid_seq_len: how many places of each sequence are no padding, shape (N,); with ``is_causal`` alone.
            seq_padding_type: "left" or "right", where the padding is.
            return_dropout_mask: refused.
            return_attn_probs: refused.
            window_size: refused, but for (-1, -1).
            sink: refused.

        Raises:
            ValueError: ``valid_seq_len`` without ``is_causal``, or another ``seq_padding_type``.
            NotImplementedError: return_dropout_mask, return_attn_probs, window_size or sink, which torch's has not.
        """
        other = {
            "return_dropout_mask": return_dropout_mask,
            "return_attn_probs": return_attn_probs,
            "window_size": window_size is not None and tuple(window_size) != (-1, -1),
            "sink": sink is not None,
        }
        if wanted := [name for name, is_given in other.items() if is_given]:
            raise NotImplementedError(f"FusedSDPA has no {wanted[0]} here: torch's attention cannot do it")
        if valid_seq_len is not None and not is_causal:
            raise ValueError("FusedSDPA accepts valid_seq_len only with is_causal=True")
        if seq_padding_type not in ("left", "right"):
            raise ValueError(f'seq_padding_type must be "left" or "right", not {seq_padding_type!r}')
        # Padding on the right lies behind all that a causal query sees.
        padded = valid_seq_len if seq_padding_type == "left" else None
        if is_causal and (attn_mask is not None or padded is not None):
            attn_mask, is_causal = _causal_mask(query, key, attn_mask, padded), False
        grouped = query.dim() > 2 and key.shape[-3] != query.shape[-3]
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=grouped
        )


def _causal_mask(
    query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, valid: torch.Tensor | None
) -> torch.Tensor:
    length, others = query.shape[-2], key.shape[-2]
    seen = torch.ones(length, others, dtype=torch.bool, device=query.device).tril()
    if valid is not None:
        place = torch.arange(others, device=query.device)
        begins = (others - valid.to(query.device)).view(-1, *[1] * (query.dim() - 1))
        # A query that is padding itself sees its own place: of nothing there is no softmax.
        seen = (seen & (place >= begins)) | torch.eye(length, others, dtype=torch.bool, device=query.device)
    if mask is None:
        return seen
    return seen & mask if mask.dtype == torch.bool else mask.masked_fill(~seen, float("-inf"))


class CustomSoftmax:
    """``torch.softmax`` over the last dimension."""

    @staticmethod
    def apply(x: torch.Tensor, flavor: int = 0) -> torch.Tensor:  # noqa: ARG004 - how exact it is on Gaudi
        """The exact one, whatever the flavor."""
        return torch.softmax(x, dim=-1)


class RotaryPosEmbeddingMode(enum.Enum):
    """Which numbers are turned together: those half the width apart, or neighbours."""

    BLOCKWISE = 0
    PAIRWISE = 1


def apply_rotary_pos_emb(  # noqa: PLR0917 - Habana's arguments
    p: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    position_ids: torch.Tensor | None = None,
    offset: int = 0,
    mode: RotaryPosEmbeddingMode = RotaryPosEmbeddingMode.BLOCKWISE,
) -> torch.Tensor:
    """Rotary positions (arXiv 2104.09864): ``p * cos + rotated(p) * sin``.

    Args:
        p: queries or keys, shape (N, heads, L, E).
        cos: shape (..., positions, E); without ``position_ids`` the L rows from ``offset`` on are used.
        sin: of the same shape.
        position_ids: the rows of each place, shape (N, L).
        offset: the first row.
        mode: which numbers are turned together.
    """
    if position_ids is not None:
        cos, sin = (table.reshape(table.shape[-2:])[position_ids].unsqueeze(1) for table in (cos, sin))
    elif cos.shape[-2] != p.shape[-2] or offset:
        rows = slice(offset, offset + p.shape[-2])
        cos, sin = cos[..., rows, :], sin[..., rows, :]
    if mode is RotaryPosEmbeddingMode.BLOCKWISE:
        first, second = p.chunk(2, dim=-1)
        return p * cos + torch.cat((-second, first), dim=-1) * sin
    first, second = p[..., ::2], p[..., 1::2]
    return p * cos + torch.stack((-second, first), dim=-1).flatten(-2) * sin


class RotaryPosEmbeddingHelperV1:
    """Rotary positions by an offset, as transformers had them up to 4.27."""

    @staticmethod
    def apply(p: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, offset: int = 0) -> torch.Tensor:
        """``apply_rotary_pos_emb(p, cos, sin, offset=offset)``"""
        return apply_rotary_pos_emb(p, cos, sin, offset=offset)


class RotaryPosEmbeddingHelperV2:
    """Rotary positions by the position of each place, as later transformers have them."""

    @staticmethod
    def apply(p: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        """``apply_rotary_pos_emb(p, cos, sin, position_ids)``"""
        return apply_rotary_pos_emb(p, cos, sin, position_ids)


class EmbeddingBag(torch.nn.EmbeddingBag):
    """``torch.nn.EmbeddingBag`` that sums its bags unless ``mode`` says otherwise; it takes torch's other arguments by name.

    DLRM calls ``EmbeddingBag.forward`` and ``EmbeddingBag.backward`` as functions of tensors, without an instance.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, mode: str = "sum", **options: Any) -> None:
        super().__init__(num_embeddings, embedding_dim, mode=mode, **options)

    def forward(self: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As torch's; as a function of (weights, indices, offsets, valid_count, kernel_mode) the sums of the bags."""
        if isinstance(self, torch.Tensor):
            return bags_of(self, *args[:3])
        return torch.nn.EmbeddingBag.forward(self, *args, **kwargs)

    @staticmethod
    @disable_casts()
    def backward(  # noqa: PLR0917 - Habana's arguments
        weight_grad: torch.Tensor,
        grad_output: torch.Tensor,
        indices: torch.Tensor,
        offsets: torch.Tensor,
        valid_count: torch.Tensor,
        kernel_mode: int = 1,  # noqa: ARG004 - Habana's
    ) -> None:
        """Write the gradients of the rows that ``EmbeddingBagPreproc.forward`` has found into ``weight_grad``."""
        # The gradient of a row is the sum of those of its bags.
        grads = bags_of(grad_output, indices, offsets, valid_count)
        weight_grad[: len(grads)].copy_(grads)


class EmbeddingBagPreProc(torch.nn.Module):
    """Makes indices and offsets ready for ``EmbeddingBag``; on Gaudi it also sorts them for the backward pass.

    >>> bag(*EmbeddingBagPreProc()(indices, offsets))
    """

    def forward(self, indices: torch.Tensor, offsets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Both as contiguous int64.

        Raises:
            TypeError: a tensor that holds no integers.
        """
        return _integers("indices", indices), _integers("offsets", offsets)


def _integers(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool:
        raise TypeError(f"{name} are integers, not {tensor.dtype}")
    return tensor.to(torch.int64).contiguous()
