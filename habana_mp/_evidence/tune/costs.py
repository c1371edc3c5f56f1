"""What a choice of dtypes costs: the ops themselves, and the casts where an op in one dtype hands its result to an op in the other."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

import torch

from habana_mp._evidence.tune.parts import Parts
from habana_mp._report.data import Report
from habana_mp._report.sums import with_backward

_ROUNDS = 5
_NUMBERS = 1 << 20
_MOST_SCALE = 3.0  # of what a step saves to what its ops save: beyond it the times of ops say nothing of the step


class Costs:
    """Of a step, in seconds or in numbers that are computed in float32. A choice is the set of the parts that run in float32.

    ``saved[i]`` is what the low dtype of part i saves, without the casts at its borders; ``borders`` has for two parts what the casts between them
    cost where one is in float32 and the other is not.
    """

    def __init__(self, saved: list[float], borders: dict[tuple[int, int], float], whole: float) -> None:
        self.saved = saved
        self.borders = borders
        self.whole = whole  # with all parts in float32
        self._scale = 1.0
        self._is_fitted = False

    @classmethod
    def in_seconds(
        cls,
        parts: Parts,
        measured: Report,
        timed: tuple[Report, Report],
        casts: Sequence[float],
        whole: float,
    ) -> Costs:
        """Of a report that measured values, and two with all parts in float32 and in the low dtype; and the seconds of casts and of float32."""
        wide, low = timed
        saved = [a - b for a, b in zip(_seconds(parts, wide), _seconds(parts, low), strict=True)]
        per_call, per_number = casts
        ways = 2 if measured.backward_seconds else 1
        borders: dict[tuple[int, int], float] = defaultdict(float)
        for maker, user, count, numbers in _handed(parts, measured):
            borders[min(maker, user), max(maker, user)] += ways * (count * per_call + numbers * per_number)
        return cls(saved, borders, whole)

    def predicted(self, in_float32: Collection[int]) -> float | None:
        """None where the times of the ops do not fit those of the step."""
        if not self._is_fitted:
            return None
        kept = set(in_float32)
        low = sum(saved for i, saved in enumerate(self.saved) if i not in kept)
        casts = sum(cost for (a, b), cost in self.borders.items() if (a in kept) != (b in kept))
        seconds = self.whole - self._scale * (low - casts)
        return seconds if seconds > 0 else None

    def fit(self, measured: float) -> None:
        """To the seconds of a run with all parts in the low dtype: what no row of a report has is spread over all of them."""
        predicted, real = sum(self.saved), self.whole - measured
        if predicted * real > 0:
            self._scale = real / predicted
            self._is_fitted = 1 / _MOST_SCALE < self._scale < _MOST_SCALE

    def told(self) -> list[float] | list[None]:
        """What the low dtype of each part saves in a step. The times of ops alone say nothing of it where they do not fit that of the step."""
        return [self._scale * each for each in self.saved] if self._is_fitted else [None] * len(self.saved)

    def moved(self, in_float32: set[int], part: int) -> float:
        """By how much the choice gets dearer if the part changes its side."""
        casts = 0.0
        for (a, b), cost in self.borders.items():
            if part in (a, b):
                apart = (a in in_float32) != (b in in_float32)
                casts += -cost if apart else cost
        return self._scale * (casts + (-self.saved[part] if part in in_float32 else self.saved[part]))


def _seconds(parts: Parts, report: Report) -> list[float]:
    """Of each part, its backward pass and the casts of what no part has made with it."""
    ways = with_backward(report)
    found = [0.0] * len(parts)
    for row in report.rows:
        part = parts.of(row)
        if part is not None:
            casts = sum(cast.seconds for cast in row.casts)
            inside = row.front_end == "autocast"  # its time has its casts in it
            found[part] += ways * (row.seconds + (0.0 if inside else casts))
    return found


def _handed(parts: Parts, report: Report) -> Iterator[tuple[int, int, int, int]]:
    """From which part to which, how many tensors and how many numbers. Views and what follows its inputs are looked through."""
    rows = report.rows
    own = [parts.of(row) for row in rows]
    edges: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for edge in report.edges or []:
        edges[edge.row].append((edge.maker, edge.count, edge.numbers if edge.dtype == parts.dtype else 0))

    def makers(row: int, seen: frozenset[int]) -> set[int]:
        if row < 0 or row in seen:
            return set()
        part = own[row]
        if part is not None:
            return {part}
        return set().union(*(makers(maker, seen | {row}) for maker, _, _ in edges[row]))

    for row, user in enumerate(own):
        if user is None:
            continue
        for maker, count, numbers in edges[row]:
            for part in makers(maker, frozenset()) - {user} if numbers else ():
                yield part, user, count, numbers


def seconds_of_casts() -> list[float]:
    """Of a call, and of a number; on the CPU, or the accelerator that there is."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    device = torch.device("cpu") if accelerator is None else accelerator

    def best(numbers: int) -> float:
        tensor = torch.zeros(numbers, device=device)
        seconds = []
        for _ in range(_ROUNDS):
            began = time.perf_counter()
            tensor.bfloat16()
            if accelerator is not None:
                torch.accelerator.synchronize()
            seconds.append(time.perf_counter() - began)
        return min(seconds)

    small, large = best(1), best(_NUMBERS)
    return [small, max(0.0, large - small) / _NUMBERS]
