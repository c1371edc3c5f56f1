"""The policies that ran in a search: those that are timed in turns at its end, the noise of these times, and which policy is the result."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from habana_mp._policy.diff import PolicyDiff
from habana_mp._policy.policy import Policy
from habana_mp._show.short import Short
from habana_mp._show.units import time

# Best times of two equal policies are seldom further apart than four such gaps: in at most 1 of 10 pairs, if times have an exponential tail.
_GAPS = 4
# Two searches find the same lists only where they need not tell times apart that are nearer, whatever the gaps were.
ALIKE = 0.02
_LESS = 0.99
# How likely it may be by chance that so many rounds show a policy to be slower: all of them up to six, six of seven.
_CHANCE = 1 / 10


@dataclass(frozen=True, repr=False)
class Point(Short):
    """A policy that ran.

    Attributes:
        name: the name of the point.
        policy: the policy.
        error: the measured error.
        seconds: the measured time, the best of ``timed`` runs.
        timed: how many runs were timed.
        memory: the measured peak of the accelerator's memory in bytes; None on a CPU.
        predicted_error: the error predicted before the run; None if there is no prediction.
        predicted_seconds: the time predicted before the run; None if there is no prediction.
        in_float32: how many parts run in float32; None for edits of ``start``.
        result_bytes: the size of the results of all parts in bytes; None for edits of ``start``.

    Example:
        >>> found = hmp.tune(lambda: model(x), 1e-2, cost="numbers")
        >>> for point in found.front:
        ...     print(point.name, point.error, point.seconds)
    """

    name: str
    policy: Policy
    error: float
    seconds: float
    timed: int
    memory: int | None
    predicted_error: float | None = None
    predicted_seconds: float | None = None
    in_float32: int | None = None
    result_bytes: int | None = None

    def _line(self) -> str:
        return f"{self.name}, error {self.error:.2g}, {time(self.seconds)}"


def timed_in_turns(
    points: Sequence[Point], rounds: int, seconds_of: Callable[[Point], float]
) -> tuple[list[Point], float]:
    """The points with the best of their times, and by how much these differ by chance, in seconds.

    One runs after another in each round, so that what else the machine does reaches all of them. The chance is measured by how far the
    second best time of a policy is from the best: slow runs do not count. It is less than a difference that the rounds show, and at least 2 % of
    the shortest time.
    """
    times: list[list[float]] = [[] for _ in points]
    for _ in range(rounds):
        for point, own in zip(points, times, strict=True):
            own.append(seconds_of(point))
    ordered = [sorted(own) for own in times]
    gap = statistics.median(own[1] - own[0] for own in ordered)
    fastest = min(times, key=min)
    shown = [min(own) - min(fastest) for own in times if _is_slower(own, fastest)]
    least = ALIKE * min(fastest)
    noise = max(least, min([_GAPS * gap, *(_LESS * each for each in shown if each > least)]))
    return [replace(point, seconds=own[0], timed=rounds) for point, own in zip(points, ordered, strict=True)], noise


def _is_slower(own: Sequence[float], fastest: Sequence[float]) -> bool:
    """By a sign test on the rounds: some of them may be slow for what else the machine does."""
    rounds, slower = len(own), sum(a > b for a, b in zip(own, fastest, strict=True))
    as_many: int = sum(math.comb(rounds, each) for each in range(slower, rounds + 1))
    return as_many <= max(1, _CHANCE * (1 << rounds))


def as_fast(points: Collection[Point], noise: float) -> list[Point]:
    """The fastest of the points that were timed in turns, and those that are as fast within the noise."""
    rounds = max(point.timed for point in points)
    timed = [point for point in points if point.timed == rounds]
    limit = min(point.seconds for point in timed) + noise
    return [point for point in timed if point.seconds <= limit]


def fastest(points: Collection[Point], noise: float, start: Policy, float32: Policy) -> Point:
    """Among the points that are as fast as the fastest one, float32, else that with the fewest changes of the start, then with the smallest error."""
    return min(
        as_fast(points, noise),
        key=lambda point: (
            point.policy != float32,
            len(PolicyDiff.between(start, point.policy).ops),
            point.error,
            point.seconds,
        ),
    )
