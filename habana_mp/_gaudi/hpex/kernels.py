"""`habana_frameworks.torch.hpex.kernels`: the embedding bag of Habana's DLRM (F215), by torch's own."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["EmbeddingBag", "EmbeddingBagPreProc"]


class EmbeddingBag(torch.nn.EmbeddingBag):
    """``torch.nn.EmbeddingBag`` that sums its bags unless ``mode`` says otherwise; it takes torch's other arguments by name."""

    def __init__(self, num_embeddings: int, embedding_dim: int, mode: str = "sum", **options: Any) -> None:
        super().__init__(num_embeddings, embedding_dim, mode=mode, **options)


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
