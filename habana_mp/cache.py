"""``hmp.cache``: the weight cache, looked at and emptied.

Under a conversion, or in a region of autocast, a float32 weight is cast once and its copy used until the weight changes: in training
until the optimizer's step, in inference for as long as the model serves. docs/benchmarks.md says what that is worth,
src/torch/weight_cache.h how a change is noticed.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from habana_mp import _core

__all__ = ["CacheInfo", "clear", "info"]


class CacheInfo(NamedTuple):
    """What ``info`` tells. Counts go on from the last ``clear`` or ``revert``."""

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
    Counted at every use, because such weights are cast each time: ``shared`` (another tensor has the memory), ``foreign`` (NumPy,
    another process or a buffer has)."""


def info() -> CacheInfo:
    """The weight cache as it is now."""
    return CacheInfo(**_core.cache_info())


def clear() -> None:
    """Forget every copy, set the counts to zero, and give back the memory that large casts keep for the next ones."""
    _core.clear_cache()


def _limit() -> int:
    """Bytes. ValueError for a HABANA_MP_CACHE_BYTES that is no number."""
    text = os.environ.get("HABANA_MP_CACHE_BYTES", "")
    if not text:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ValueError(
            f"HABANA_MP_CACHE_BYTES is {text!r}; it takes a whole number of bytes (0 switches the weight cache off)"
        )
    return int(text)


# Watch of src/torch/alias_watch.h.
_SEEN, _EXPORTED, _ANY = range(3)

# Through these somebody can write to a weight unseen: while they hold the alias, or, the exported ones, at any time.
_WATCHED = {
    "data": _SEEN,
    "untyped_storage": _SEEN,
    "data_ptr": _SEEN,
    "set_": _ANY,
    "numpy": _EXPORTED,
    "__dlpack__": _EXPORTED,
}
# What the owners themselves held under these names before the watches that autocast has put there; empty without.
_before_autocast: dict[tuple[Any, str], Any] = {}
_INHERITED = object()

_original_replay = torch.cuda.CUDAGraph.replay


@functools.wraps(_original_replay)
def _replay(graph: torch.cuda.CUDAGraph) -> None:
    # A captured step changes weights and tells nobody.
    _original_replay(graph)
    _core.end_cached_after_step()


def _patches() -> Iterator[tuple[Any, str, Any]]:
    if _before_autocast:
        return
    yield torch.cuda.CUDAGraph, "replay", _replay
    for name, watch in _WATCHED.items():
        # The class gives torch's own, also while a watch stands there.
        yield torch.Tensor, name, _core.alias_watch(getattr(torch.Tensor, name), watch)


def _after_step(*_: Any) -> None:
    # Fused optimizers do not move the version counters of what they change. Compiled steps do.
    if not torch.compiler.is_compiling():
        _core.end_cached_after_step()


_hooks: list[Any] = []


def _open(limit: int) -> None:
    """Called by ``convert``, and for the first region of autocast."""
    _core.set_cache_limit(limit)
    if not _hooks:
        _hooks.append(register_optimizer_step_post_hook(_after_step))


def _open_for_autocast() -> None:
    """Called when a region is made. What a conversion has opened will do; after ``revert`` the next region opens it again."""
    if _hooks:
        return
    limit = _limit()
    watches = list(_patches())
    for owner, name, watch in watches:
        _before_autocast[owner, name] = vars(owner).get(name, _INHERITED)
        setattr(owner, name, watch)
    _open(limit)


def _close() -> None:
    """Called by ``revert``."""
    _core.set_cache_limit(0)
    while _hooks:
        _hooks.pop().remove()
    while _before_autocast:
        (owner, name), before = _before_autocast.popitem()
        if before is _INHERITED:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
    clear()
