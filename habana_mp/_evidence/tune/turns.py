"""The last runs of a search: policies that are timed in turns, the noise of these times, and which policy is the result."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from habana_mp._evidence.tune.point import Point
from habana_mp._policy.diff import PolicyDiff
from habana_mp._policy.policy import Policy

# Best times of two equal policies are seldom further apart than four such gaps: in at most 1 of 10 pairs, if times have an exponential tail.
_GAPS = 4


def timed_in_turns(
    points: Sequence[Point], rounds: int, seconds_of: Callable[[Point], float]
) -> tuple[list[Point], float]:
    """The points with the best of their times, and by how much these differ by chance, in seconds.

    One runs after another in each round, so that what else the machine does reaches all of them. The chance is measured by how far the
    second best time of a policy is from the best: slow runs do not count.
    """
    times: list[list[float]] = [[] for _ in points]
    for _ in range(rounds):
        for point, own in zip(points, times, strict=True):
            own.append(seconds_of(point))
    ordered = [sorted(own) for own in times]
    noise = _GAPS * statistics.median(own[1] - own[0] for own in ordered)
    return [replace(point, seconds=own[0], timed=rounds) for point, own in zip(points, ordered, strict=True)], noise


def as_fast(points: Collection[Point], noise: float) -> list[Point]:
    """The fastest of the points that were timed in turns, and those that are as fast within the noise."""
    rounds = max(point.timed for point in points)
    timed = [point for point in points if point.timed == rounds]
    limit = min(point.seconds for point in timed) + noise
    return [point for point in timed if point.seconds <= limit]


def fastest(points: Collection[Point], noise: float, start: Policy) -> Point:
    """Among the points that are as fast as the fastest one, that with the fewest changes of the start, then with the smallest error."""
    return min(
        as_fast(points, noise),
        key=lambda point: (len(PolicyDiff.between(start, point.policy).ops), point.error, point.seconds),
    )
