"""What calls would take in another dtype or in 8 bits, beside the time that they took."""

from __future__ import annotations

from collections.abc import Callable

from habana_mp._report.data import Report, Row, Values
from habana_mp._report.sums import with_backward

_OUTLIER = (
    3  # times what the others take: the first call, which prepares the kernel, or one that another process interrupted
)


class Times:
    """Of the rows of a report with values, with their backward passes. What every call takes is left out, and so is what one call takes far longer than
    the others of its row.
    """

    def __init__(self, report: Report) -> None:
        self._ran_overhead = _overhead(report, _forward_ran)
        self._other_overhead = _overhead(report, _forward_other)
        self._with_backward = with_backward(report)
        made = [cast for row in report.rows for cast in row.casts if cast.bytes]
        # Those of backward passes are the same ones back.
        passes = 2 if any(cast.backward.count for cast in made) else 1
        self._seconds_of_byte = passes * _median([(cast.seconds / cast.bytes, cast.bytes) for cast in made])

    def other(self, row: Row) -> float:
        """By how much the calls of a row take longer in the other dtype."""
        values = row.measured
        if not values.other_seconds:
            return 0.0
        forward = max(0.0, _forward_other(values) - values.calls * self._other_overhead) - self._ran(row)
        if not values.backward_other_seconds:  # it ran in float32: how its backward pass would run low is not measured
            return forward * self._with_backward
        parts = values.backward_calls
        ran = _usual(values.backward_ran_seconds, values.backward_ran_longest, values.calls, parts)
        other = _usual(values.backward_other_seconds, values.backward_other_longest, values.calls, parts)
        return forward + max(0.0, other - parts * self._other_overhead) - max(0.0, ran - parts * self._ran_overhead)

    def in_casts(self, row: Row, before: float, after: float) -> float:
        """By how much its casts take longer that have ``after`` bytes in place of ``before``. What the cache has, of weights, takes next to no time and is
        among the bytes: so what goes is what was measured.
        """
        if after < before:
            return row.all_cast_seconds * (after - before) / before
        return (after - before) * self._seconds_of_byte

    def in_format(self, row: Row, name: str) -> float:
        """By how much those take longer that can run in 8 bits: than in the low dtype with weights that were cast before, where they ran low."""
        found = row.measured.in_format(name)
        if found is None:
            return 0.0
        part = min(1.0, found.calls / max(1, row.measured.calls))
        return found.seconds - (found.lower_seconds or self._ran(row) * part)

    def _ran(self, row: Row) -> float:
        values = row.measured
        inside = sum(cast.seconds for cast in row.casts) if row.front_end == "autocast" else 0.0
        return max(0.0, max(0.0, _forward_ran(values) - values.calls * self._ran_overhead) - inside)


def _forward_ran(values: Values) -> float:
    return _usual(values.ran_seconds, values.ran_longest, values.calls, values.calls)


def _forward_other(values: Values) -> float:
    return _usual(values.other_seconds, values.other_longest, values.calls, values.calls)


def _usual(seconds: float, longest: float, calls: int, parts: int) -> float:
    """The time of calls of so many parts, all alike: the longest part as the others on average, if it took far longer than these do in a call."""
    rest = max(0.0, seconds - longest)
    return rest * parts / (parts - 1) if min(calls, parts) > 1 and longest > _OUTLIER * rest / (calls - 1) else seconds


def _median(weighed: list[tuple[float, int]]) -> float:
    """Of values and their weights."""
    left = sum(weight for _, weight in weighed) / 2
    for value, weight in sorted(weighed):
        left -= weight
        if left <= 0:
            return value
    return 0.0


def _overhead(report: Report, seconds: Callable[[Values], float]) -> float:
    """Per call: what a call takes that computes next to nothing."""
    values = [row.measured for row in report.rows if row.measured.other_seconds and row.measured.calls]
    return min((seconds(each) / each.calls for each in values), default=0.0)
