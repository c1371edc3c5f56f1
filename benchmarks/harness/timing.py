"""Variants that take turns, and the shortest run of each."""

from __future__ import annotations

import ctypes
import time
import timeit
from typing import TYPE_CHECKING, Any

import torch
from harness.device import DEVICE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


# Of mallopt: malloc.h.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


def keep_freed_memory() -> None:
    """malloc gives nothing back to the system from here on. Else calls wait for new pages, and for how many depends on what ran before in the
    process, not on the variant: none to 40,000 in a training step of the MLP, none to 2,500 in inference of the CNN, a quarter of its time.
    """
    libc = ctypes.CDLL(None)
    libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    libc.mallopt(M_MMAP_MAX, 0)


def clock() -> float:
    """Seconds, when the device has done all that it was given: calls on CUDA return before they are done."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def timer(statement: Callable[[], object] | str, names: dict[str, Any] | None = None) -> timeit.Timer:
    """Reads the clock at the beginning and at the end of a run, not between its calls."""
    return timeit.Timer(statement, timer=clock, globals=names)


def shortest(timer: timeit.Timer, runs: int, calls: int = 1, seconds: float = 0) -> float:
    """Seconds a call takes in the shortest run: of so many runs, and of more until so many seconds are over."""
    end = time.perf_counter() + seconds
    best = min(timer.repeat(runs, calls))
    while time.perf_counter() < end:
        best = min(best, timer.timeit(calls))
    return best / calls


def take_turns(visits: Mapping[str, Callable[[], float]], rounds: int, seconds: float = 0) -> dict[str, float]:
    """The least that each visit gives: in so many rounds, and in more until so many seconds are over."""
    best = dict.fromkeys(visits, float("inf"))
    end = time.perf_counter() + seconds
    while rounds > 0 or time.perf_counter() < end:
        rounds -= 1
        for name, visit in visits.items():
            best[name] = min(best[name], visit())
    return best
