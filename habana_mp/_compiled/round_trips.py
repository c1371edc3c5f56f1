"""Casts to a lower dtype and back that Inductor drops, though its setting for the roundings of uncompiled code is on.

An index that becomes a number, as in arange, is cast by its name alone. Before torch 2.13 two casts in a row become one as well, and a kernel on the
CPU gives a cast back the number that was cast.
"""  # (D55)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from habana_mp._cast import LOW_DTYPES
from habana_mp._torch_private import COMPILE_FX, ROUND_TRIPS

_JOINED = (*LOW_DTYPES, torch.float32, torch.float64)


def keep(is_ours: Callable[[], bool]) -> None:
    """Keeps these casts from now on, in graphs that ``is_ours`` names and that have the setting on. In others Inductor rounds as before: torch's
    caches on disk do not know of this.
    """
    if not ROUND_TRIPS.works or getattr(ROUND_TRIPS.of_index, "habana_mp", False):
        return
    of_index = ROUND_TRIPS.of_index

    def are_kept() -> bool:
        return bool(COMPILE_FX.rounds) and is_ours()

    def cast_of_index(value: Any, dtype: torch.dtype, *args: Any, **kwargs: Any) -> Any:
        # Inductor then makes a number of the index, and casts that.
        return NotImplemented if dtype in LOW_DTYPES and are_kept() else of_index(value, dtype, *args, **kwargs)

    cast_of_index.habana_mp = True  # type: ignore[attr-defined]
    if "join" in ROUND_TRIPS.paths:
        _keep_before_2_13(are_kept)
    place, name = ROUND_TRIPS.place("of_index")
    setattr(place, name, staticmethod(cast_of_index))


def _keep_before_2_13(are_kept: Callable[[], bool]) -> None:
    remember = ROUND_TRIPS.remember

    def remember_number(*args: Any) -> None:
        if not are_kept():
            remember(*args)

    def drops_nothing(match: Any) -> bool:
        return not are_kept() or _is_lossless(match.kwargs["arg"].meta.get("val"), match.kwargs["dtype1"])

    # Later there are others beside these, without a handler.
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
