"""What calls would take in another dtype or in 8 bits, beside the time that they took."""

from __future__ import annotations

from collections.abc import Callable

from habana_mp._report.data import Report, Row, Values
from habana_mp._report.sums import with_backward


class Times:
    """Of the rows of a report with values, with their backward passes. What every call takes is left out."""

    def __init__(self, report: Report) -> None:
        self._ran_overhead = _overhead(report, lambda values: values.ran_seconds)
        self._other_overhead = _overhead(report, lambda values: values.other_seconds)
        self._with_backward = with_backward(report)
        made = [cast for row in report.rows for cast in row.casts if cast.bytes]
        size = sum(cast.bytes for cast in made)
        # Those of backward passes are the same ones back.
        passes = 2 if any(cast.backward.count for cast in made) else 1
        self._seconds_of_byte = passes * sum(cast.seconds for cast in made) / size if size else 0.0

    def other(self, row: Row) -> float:
        """By how much the calls of a row take longer in the other dtype."""
        values = row.measured
        if not values.other_seconds:
            return 0.0
        forward = max(0.0, values.other_seconds - values.calls * self._other_overhead) - self._ran(row)
        if not values.backward_other_seconds:  # it ran in float32: how its backward pass would run low is not measured
            return forward * self._with_backward
        other = max(0.0, values.backward_other_seconds - values.backward_calls * self._other_overhead)
        return forward + other - max(0.0, values.backward_ran_seconds - values.backward_calls * self._ran_overhead)

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
        return max(0.0, max(0.0, values.ran_seconds - values.calls * self._ran_overhead) - inside)


def _overhead(report: Report, seconds: Callable[[Values], float]) -> float:
    """Per call: what a call takes that computes next to nothing."""
    values = [row.measured for row in report.rows if row.measured.other_seconds and row.measured.calls]
    return min((seconds(each) / each.calls for each in values), default=0.0)
