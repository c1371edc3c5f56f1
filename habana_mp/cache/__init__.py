"""``hmp.cache``: the weight cache, looked at and emptied, and the float32 weights that its copies stand for, moved to a file and back.

Under a conversion, or in a region of autocast, a float32 weight is cast once and its copy used until the weight changes: in training
until the optimizer's step, in inference for as long as the model runs. docs/benchmarks-tables.md has what that saves,
src/weights/weight_cache.h how a change is noticed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

import habana_mp._core as _core
from habana_mp.cache.offloading import Offloaded, offload, restore

__all__ = ["CacheInfo", "Choice", "Offloaded", "choices", "clear", "info", "offload", "restore"]


class CacheInfo(NamedTuple):
    """What ``info`` returns. Counts go on from the last ``clear`` or ``revert``."""

    entries: int
    """Weights that have a copy now."""
    bytes: int
    """What the copies take."""
    limit: int
    """What they may take: ``HABANA_MP_CACHE_BYTES``, else a quarter of the machine's memory."""
    hits: int
    """Uses of a copy without a cast."""
    misses: int
    """Casts into new memory."""
    refreshed: int
    """Casts into the memory of a copy that was no longer valid."""
    invalidated: dict[str, int]
    """Why a copy was not used again, counted when its weight is used next: ``version`` (changed in place), ``storage`` (other memory,
    shape or dtype), ``alias`` (``.data`` or another alias was taken), ``optimizer`` (a step), ``disable_casts`` (one ended), ``samples``
    (its numbers are others), ``written`` (the copy was changed), ``freed`` (the weight is gone).
    Counted at every use, because such weights are cast each time: ``shared`` (another tensor has the memory), ``foreign`` (NumPy, a
    DLPack capsule, another process or a buffer has, or a collective writes to it)."""
    packed: int
    """Entries whose copy is laid out as the CPU's product or convolution reads it."""


class Choice(NamedTuple):
    """A row of ``choices``: how an op is computed with weights of one shape."""

    op: str
    weight: tuple[int, ...]
    """Sizes. A large matrix is tried in part."""
    input: tuple[int, ...]
    """Sizes that the ways were tried with. Rows up to these share the choice of a product, and images from these on that of a convolution."""
    dtype: torch.dtype
    threads: int
    by: str
    """``plain``: torch's op with a plain copy. ``onednn``: oneDNN with a packed copy. ``own``: this package's kernel with a packed copy."""
    microseconds: dict[str, float]
    """What each way took at its best, but for ways with other bits. Empty where nothing was measured."""


def info() -> CacheInfo:
    """The weight cache as it is now."""
    return CacheInfo(**_core.cache_info())


def choices() -> list[Choice]:
    """The shapes that a packed copy could serve so far in this process, and what was chosen for each.

    >>> hmp.convert()
    >>> model = torch.nn.Linear(256, 256)
    >>> with torch.no_grad():
    ...     _ = model(torch.randn(4, 256))
    >>> [(row.op, row.weight, row.input) for row in hmp.cache.choices()][-1:]
    [('linear', (256, 256), (4, 256))]
    """
    return [
        Choice(
            row["op"],
            tuple(row["weight"]),
            tuple(row["input"]),
            getattr(torch, row["dtype"]),
            row["threads"],
            row["by"],
            row["microseconds"],
        )
        for row in _core.cache_choices()
    ]


def clear() -> None:
    """Forget every copy, set the counts to zero, and give back the memory that large casts keep for the next ones."""
    _core.clear_cache()
