"""Casts to a lower dtype and back that Inductor drops, though its setting for the roundings of uncompiled code is on.

Of an index that is cast, as in arange, it notes the new dtype and rounds nothing. Before torch 2.13 it also makes one cast of two in a row, and its
kernels on the CPU use the number from before a cast where it is cast back.
"""  # (D55)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from habana_mp._cast import LOW_DTYPES
from habana_mp._torch_private import COMPILE_FX, ROUND_TRIPS

_JOINED = (*LOW_DTYPES, torch.float32, torch.float64)


def keep(is_ours: Callable[[], bool]) -> None:
    """Keeps these casts from now on, in graphs that ``is_ours`` names and that have the setting on. Graphs of others stay as torch makes them: torch's
    caches on disk do not know whether this has been called.
    """
    if not ROUND_TRIPS.works or hasattr(ROUND_TRIPS.of_indices, "habana_mp"):
        return
    of_indices = ROUND_TRIPS.of_indices

    def are_kept() -> bool:
        return bool(COMPILE_FX.rounds) and is_ours()

    def with_casts(self: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name == "to_dtype" and (args[1] if len(args) > 1 else kwargs["dtype"]) in LOW_DTYPES and are_kept():
            return self.fallback(name, args, kwargs)  # makes a number of the index, and casts that
        return of_indices(self, name, args, kwargs)

    with_casts.habana_mp = True  # type: ignore[attr-defined]
    if "join" in ROUND_TRIPS.paths:
        _keep_before_2_13(are_kept)
    setattr(*ROUND_TRIPS.place("of_indices"), with_casts)


def _keep_before_2_13(are_kept: Callable[[], bool]) -> None:
    remember = ROUND_TRIPS.remember

    def remember_number(*args: Any) -> None:
        if not are_kept():
            remember(*args)

    def drops_nothing(match: Any) -> bool:
        return not are_kept() or _is_lossless(match.kwargs["arg"].meta.get("val"), match.kwargs["dtype1"])

    # Once Inductor has compiled something, its table has entries of other kinds, too.
    for entry in [entry for entries in [*ROUND_TRIPS.patterns.values()] for entry in entries]:
        if getattr(entry, "handler", None) is ROUND_TRIPS.join:
            entry.extra_check = drops_nothing
    setattr(*ROUND_TRIPS.place("remember"), remember_number)


def _is_lossless(given: Any, dtype: torch.dtype) -> bool:
    return (
        isinstance(given, torch.Tensor)
        and {given.dtype, dtype} <= {*_JOINED}
        and torch.promote_types(given.dtype, dtype) == dtype
    )
