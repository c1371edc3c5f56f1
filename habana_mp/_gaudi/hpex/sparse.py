"""The embedding bag of Habana's DLRM whose backward pass and optimizer are functions that the script calls.

Their names are those of classes. `EmbeddingBagPreproc.forward` groups the places of a batch by the row of the table that they look up;
`EmbeddingBag.backward` adds up the gradient of each such row, and `SparseSGD.forward` or `SparseAdagrad.forward` steps those rows alone.
"""  # (F215)

from __future__ import annotations

import torch
from torch.nn import functional

from habana_mp.hmp import disable_casts

_EPS = 1e-10  # as torch.optim.Adagrad


class EmbeddingBagPreproc:
    """A batch of lookups, by the rows of the table."""

    @staticmethod
    def forward(
        indices: torch.Tensor,
        offsets: torch.Tensor,
        threads: int = 1,  # noqa: ARG004 - Habana's
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """How many rows are looked up, which, the bags of each lookup in the order of the rows, and where in these each row begins.

        Args:
            indices: of rows, shape (lookups,), integers.
            offsets: where each bag begins, and the number of lookups behind them: shape (bags + 1,), integers.
            threads: not used.

        Returns:
            Tensors of shape (1,) int64, and (lookups,), (lookups,), (lookups + 1,) int32, filled up with zeros, and the last with the
            number of lookups.
        """
        lookups = indices.numel()
        rows, counts = torch.unique(indices, return_counts=True)
        order = torch.argsort(indices, stable=True)
        device = indices.device
        bags = torch.repeat_interleave(torch.arange(offsets.numel() - 1, device=device), offsets.diff().long())
        unique = torch.zeros(lookups, dtype=torch.int32, device=device)
        unique[: rows.numel()] = rows.int()
        begins = torch.full((lookups + 1,), lookups, dtype=torch.int32, device=device)
        begins[: rows.numel() + 1] = functional.pad(counts.cumsum(0), (1, 0)).int()
        return torch.tensor([rows.numel()], device=device), unique, bags[order].int(), begins


def bags_of(
    weights: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, valid_count: torch.Tensor
) -> torch.Tensor:
    """The sums of the rows of each bag; ``valid_count`` holds the numbers of offsets and of indices that are in use."""
    used_offsets, used_indices = valid_count.tolist()
    return functional.embedding_bag(
        indices[:used_indices].long(), weights, offsets[:used_offsets].long(), mode="sum", include_last_offset=True
    )


class SparseSGD:
    """A step of SGD for the rows that are looked up."""

    @staticmethod
    @torch.no_grad()
    @disable_casts()
    def forward(  # noqa: PLR0917 - Habana's arguments
        weight_grad: torch.Tensor,
        weights: torch.Tensor,
        moments: torch.Tensor,  # noqa: ARG004 - not of SGD
        unique_indices: torch.Tensor,
        lr: torch.Tensor,
        count: torch.Tensor,
    ) -> None:
        """``weights[i] -= lr * weight_grad``, in place, for the first ``count`` of ``unique_indices``."""
        rows = unique_indices[: int(count)].long()
        weights.index_add_(0, rows, weight_grad[: rows.numel()] * -lr)


class SparseAdagrad:
    """A step of Adagrad for the rows that are looked up."""

    @staticmethod
    @torch.no_grad()
    @disable_casts()
    def forward(  # noqa: PLR0917 - Habana's arguments
        weight_grad: torch.Tensor,
        weights: torch.Tensor,
        moments: torch.Tensor,
        unique_indices: torch.Tensor,
        lr: torch.Tensor,
        count: torch.Tensor,
    ) -> None:
        """As ``SparseSGD.forward``, each gradient over the root of the sum of its squares so far, which ``moments`` keeps."""
        rows = unique_indices[: int(count)].long()
        grads = weight_grad[: rows.numel()]
        moments.index_add_(0, rows, grads * grads)
        weights.index_add_(0, rows, grads / (moments[rows].sqrt() + _EPS) * -lr)
