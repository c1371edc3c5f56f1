"""Casts to a lower dtype and back that Inductor drops before torch 2.13, though its setting for the roundings of uncompiled code is on.

It makes one cast of two in a row, and its kernels on the CPU give a cast back the number that was cast. From torch 2.13 on both ask the setting.
"""  # (D55)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from habana_mp._torch_private import COMPILE_FX, ROUND_TRIPS


def keep(is_ours: Callable[[], bool]) -> None:
    """From now on they are kept where the setting is on and ``is_ours``, asked while a graph is compiled: in other graphs Inductor rounds as before,
    since its caches do not look at this.
    """
    if ROUND_TRIPS is None or not ROUND_TRIPS.works or getattr(ROUND_TRIPS.remember, "habana_mp", False):
        return
    remember = ROUND_TRIPS.remember

    def are_kept() -> bool:
        return bool(COMPILE_FX.rounds) and is_ours()

    def remember_number(*args: Any) -> None:
        if not are_kept():
            remember(*args)

    def drops_nothing(match: Any) -> bool:
        return not are_kept() or _is_lossless(match.kwargs["arg"].meta.get("val"), match.kwargs["dtype1"])

    for entry in (entry for entries in ROUND_TRIPS.patterns.values() for entry in entries):
        if entry.handler is ROUND_TRIPS.join:
            entry.extra_check = drops_nothing
    remember_number.habana_mp = True  # type: ignore[attr-defined]
    setattr(*ROUND_TRIPS.place("remember"), remember_number)


def _is_lossless(given: Any, dtype: torch.dtype) -> bool:
    return (
        isinstance(given, torch.Tensor)
        and given.is_floating_point()
        and torch.promote_types(given.dtype, dtype) == dtype
    )
