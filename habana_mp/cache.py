"""``hmp.cache``: the weight cache, looked at and emptied.

Under a conversion, or in a region of autocast, a float32 weight is cast once and its copy used until the weight changes: in training
until the optimizer's step, in inference for as long as the model runs. docs/benchmarks-tables.md has what that saves,
src/weights/weight_cache.h how a change is noticed.
"""

from __future__ import annotations

from typing import NamedTuple

import habana_mp._core as _core

__all__ = ["CacheInfo", "clear", "info"]


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
    """Entries whose copy is laid out as the CPU's matrix product reads it."""


def info() -> CacheInfo:
    """The weight cache as it is now."""
    return CacheInfo(**_core.cache_info())


def clear() -> None:
    """Forget every copy, set the counts to zero, and give back the memory that large casts keep for the next ones."""
    _core.clear_cache()
