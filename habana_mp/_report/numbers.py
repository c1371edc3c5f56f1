"""What a report has measured of the numbers of calls: errors, ranges, and the change of the loss that an error makes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from habana_mp._report.added import added_counts
from habana_mp._report.data import Error, Report, Row

# Why the error of a call is not measured, by kUnmeasuredNames in src/report/values.h.
UNMEASURED = {
    "random": "it draws random numbers",
    "writes": "it writes to more than its result",
    "reserve": "it needs what its forward pass keeps in reserve",
    "library": "it is not an op of torch, or its kernel is a Python function",
    "collective": "it communicates with other processes",
    "kernel": "it cannot run in the other dtype",
    "tensors": "it has float64, sparse or other special tensors",
    "memory": "too many errors wait for gradients, so its share is not complete",
    "sizes": "the first run gave it other sizes",
    "thread": "another thread than the report's called it",
}


@dataclass(frozen=True)
class LocalError:
    """The error of ops against the same ops in float32, on the same inputs.

    ``relative`` is the root of the sum of squared differences over that of the float32 numbers, ``largest`` the largest difference, and
    ``lost`` how many numbers are not finite that are so in float32. ``float`` of it is ``relative``.

    Example:
        >>> policy = hmp.convert()
        >>> with hmp.report(values=True) as r:
        ...     model(x).sum().backward()
        >>> 0 < float(r.local_error("linear")) < 0.1
        True
    """

    relative: float
    largest: float
    lost: int

    def __float__(self) -> float:
        return self.relative


def local_error(error: Error) -> LocalError:
    whole = error.reference_squares
    relative = math.sqrt(error.squares / whole) if whole > 0 else (math.inf if error.squares > 0 else 0.0)
    return LocalError(relative, error.largest, error.lost)


def share(rows: Iterable[Row], chosen: Iterable[Row], *, what_if: bool = False) -> float:
    """What part of all changes the chosen rows make, without signs: errors of two places may cancel by chance."""
    rows = [*rows]
    size = change_of(rows, what_if=what_if)
    whole = sum(map(size, rows))
    return sum(map(size, chosen)) / whole if whole > 0 else 0.0


def saw_backward(rows: Iterable[Row]) -> bool:
    """Whether gradients reached the ops, by a loss or by ``project``."""
    return any(row.measured.changes or row.measured.projections for row in rows)


def shares_known(rows: Iterable[Row]) -> bool:
    """Whether it is known which op makes the error: not without a backward pass, nor where the loss or its gradients are not finite."""
    rows = [*rows]
    return share(rows, rows) > 0


def change_of(rows: Iterable[Row], *, what_if: bool = False) -> Callable[[Row], float]:
    """The size of the change that a row makes: of losses if the report has seen a backward pass of one, else of random sums of the outputs."""
    of_loss = any(row.measured.changes for row in rows)
    return lambda row: math.sqrt(squares(row, of_loss=of_loss, what_if=what_if))


def squares(row: Row, *, of_loss: bool, what_if: bool = False) -> float:
    """Of the changes in each backward pass, of losses or of random sums of the outputs; with ``what_if`` in the low dtype."""
    values = row.measured
    if of_loss:
        return values.change_low_squares if what_if else values.change_squares
    return values.projected_low if what_if else values.projected


class Objective:
    """How far a loss is off, or outputs in relation to their size, to first order: as the step ran, and as it would run.

    The root of the sum of squares over rows, and the mean over backward passes. Signs do not count: what cancels by chance in one step adds
    up in the next.
    """

    def __init__(self, report: Report) -> None:
        self._rows = report.rows
        self._of_loss = any(row.measured.changes for row in report.rows)
        self._scale = (report.backward_passes if self._of_loss else report.projected_squares) or 0.0

    @property
    def known(self) -> bool:
        return self._scale > 0

    @property
    def what(self) -> str:
        return "the loss" if self._of_loss else "the outputs"

    def error(self, left: Mapping[int, float] = MappingProxyType({}), low: Collection[int] = ()) -> float:
        """With rows in float32 of whose errors some part is ``left``, and others in the low dtype, by their numbers."""
        total = 0.0
        for number, row in enumerate(self._rows):
            size = squares(row, of_loss=self._of_loss, what_if=number in low)
            total += size * left.get(number, 1.0) ** 2
        return math.sqrt(total / self._scale)


def with_values(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row.values]


def why_unmeasured(rows: Iterable[Row], *, backward: bool = False) -> tuple[int, str]:
    """How many calls of some rows were not measured, and why: 0 and an empty text if all were."""
    reasons = added_counts((row.unmeasured_backward if backward else row.unmeasured) or {} for row in rows)
    return sum(reasons.values()), ", ".join(UNMEASURED.get(reason, reason) for reason in reasons)
