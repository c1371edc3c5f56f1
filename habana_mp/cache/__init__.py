"""``hmp.cache``: show and clear the weight cache, and move float32 weights to a file and back.

Under a conversion, or in a region of autocast, a float32 weight is cast once, and its copy is used until the weight changes: in
training until the optimizer's step, in inference as long as the model runs. docs/benchmarks-tables.md has the time that this saves,
src/weights/weight_cache.h explains how a change is noticed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

import habana_mp._core as _core
from habana_mp.cache.offloading import Offloaded, offload, restore

__all__ = ["CacheInfo", "Choice", "Offloaded", "choices", "clear", "info", "offload", "restore"]


class CacheInfo(NamedTuple):
    """The result of ``info``. ``clear`` and ``revert`` set the counts to zero.

    Example:
        >>> hmp.cache.clear()
        >>> found = hmp.cache.info()
        >>> found.entries, found.hits
        (0, 0)
    """

    entries: int
    """The number of weights that have a copy now."""
    bytes: int
    """The size of the copies in bytes."""
    limit: int
    """The largest size of the copies in bytes: ``HABANA_MP_CACHE_BYTES``, else a quarter of the machine's memory. 0 before the
    first conversion or region, after ``revert``, and under ``convert`` with a policy that has ``cache = false``."""
    hits: int
    """How often a copy was used without a cast."""
    misses: int
    """How many casts went into new memory."""
    refreshed: int
    """How many casts went into the memory of a copy that was no longer valid."""
    invalidated: dict[str, int]
    """Why copies were not used again, counted at the next use of the weight: ``version`` (the weight was changed in place), ``storage``
    (it has other memory, another shape or dtype), ``alias`` (``.data`` or another alias was taken), ``optimizer`` (a step),
    ``disable_casts`` (the end of a block), ``samples`` (its numbers differ), ``written`` (the copy was changed), ``freed`` (the weight no
    longer exists). Two reasons count at every use, because such weights are cast each time: ``shared`` (another tensor uses the memory)
    and ``foreign`` (NumPy, a DLPack capsule, another process or a buffer uses it, or a collective writes to it).
    """
    packed: int
    """The number of copies in the layout that the CPU's matrix product or convolution reads."""


class Choice(NamedTuple):
    """A row of ``choices``: how an op is computed with weights of one shape.

    Example:
        >>> for choice in hmp.cache.choices():
        ...     print(choice.op, choice.weight, choice.by)
    """

    op: str
    weight: tuple[int, ...]
    """The shape of the weight. Of a large matrix only a part is tried."""
    input: tuple[int, ...]
    """The shape of the input in the measurement. A product with at most as many rows, and a convolution with at least as many images, uses
    the same choice.
    """
    dtype: torch.dtype
    threads: int
    by: str
    """``plain``: torch's op with a plain copy. ``onednn``: oneDNN with a packed copy. ``own``: this package's kernel with a packed copy."""
    microseconds: dict[str, float]
    """The best time of each way in microseconds, without ways that give other bits. Empty if nothing was measured."""


def info() -> CacheInfo:
    """Return the state of the weight cache.

    Example:
        >>> policy = hmp.convert()
        >>> hmp.cache.info().limit > 0
        True
    """
    return CacheInfo(**_core.cache_info())


def choices() -> list[Choice]:
    """Return the shapes that a packed copy could serve so far in this process, and the choice for each.

    There are none on a CPU where oneDNN does not compute in bfloat16: no copy is packed there.

    Example:
        >>> policy = hmp.convert()
        >>> model = torch.nn.Linear(256, 256)
        >>> with torch.no_grad():
        ...     _ = model(torch.randn(4, 256))
        >>> [row.input for row in hmp.cache.choices() if row.weight == (256, 256)]
        [(4, 256)]
    """
    rows = _core.cache_choices()
    shapes = ("weight", "input")
    return [
        Choice(**{**row, **{name: tuple(row[name]) for name in shapes}, "dtype": getattr(torch, row["dtype"])})
        for row in rows
    ]


def clear() -> None:
    """Delete every copy, set the counts to zero, and free the memory that large casts keep for the next ones.

    Example:
        >>> hmp.cache.clear()
        >>> hmp.cache.info().bytes
        0
    """
    _core.clear_cache()
