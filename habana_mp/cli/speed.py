"""How fast bfloat16 is on this CPU, in one measurement of about a second. Ratios: the times of one run say little.

On one thread: with more, whatever else the machine does would be measured with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch

from habana_mp._show.progress import Bar
from habana_mp._show.units import time
from habana_mp.hmp import cast

_SIDE = 512
_KI_ELEMENTS = 256
_SECONDS = 0.5  # for each pair


@dataclass(frozen=True)
class Speed:
    """Best times in seconds, of a matrix product and of a cast to bfloat16, and how many times as fast ours is."""

    matmul_float32: float
    matmul_bfloat16: float
    matmul_ratio: float
    cast_to: float
    cast_habana_mp: float
    cast_ratio: float

    def lines(self) -> list[str]:
        return [
            f"matmul {_SIDE} x {_SIDE}: float32 {time(self.matmul_float32)}, bfloat16 {time(self.matmul_bfloat16)}",
            f"cast of {_KI_ELEMENTS} Ki numbers: Tensor.to {time(self.cast_to)}, hmp.cast {time(self.cast_habana_mp)}",
        ]


def measured() -> Speed:
    a, x = torch.randn(_SIDE, _SIDE), torch.randn(_KI_ELEMENTS << 10)
    low = a.to(torch.bfloat16)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode(), Bar() as bar:
            bar.start(total=2)
            plain, fast = _best_in_turns(lambda: a @ a, lambda: low @ low)
            bar.advance()
            to, own = _best_in_turns(lambda: x.to(torch.bfloat16), lambda: cast(x, torch.bfloat16))
            bar.advance()
    finally:
        torch.set_num_threads(threads)
    return Speed(plain, fast, round(plain / fast, 2), to, own, round(to / own, 2))


def _best_in_turns(*calls: Callable[[], object]) -> list[float]:
    """The shortest run of each; they take turns, so that what else the machine does meets all of them."""
    best = [float("inf")] * len(calls)
    for call in calls:
        call()
    end = perf_counter() + _SECONDS
    while True:
        for i, call in enumerate(calls):
            start = perf_counter()
            call()
            best[i] = min(best[i], perf_counter() - start)
        if perf_counter() > end:
            return best
