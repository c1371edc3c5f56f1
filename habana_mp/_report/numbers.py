"""What a report has measured of the numbers of calls: errors, ranges, and the change of the loss that an error makes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import habana_mp._core as _core
from habana_mp._report.added import added_counts
from habana_mp._report.data import Edge, Error, Report, Row
from habana_mp._report.formats import FORMATS
from habana_mp._show.units import encodable

OUTPUTS = "outputs"

# The error of a row as it ran, in the low dtype, of float32 results that are rounded, or in 8 bits: of calls that cannot run so, in the low dtype.
Run = Literal["ran", "low", "rounding", "weight_int8", "int8"]

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


def share(rows: Iterable[Row], chosen: Iterable[Row], which: Run = "ran") -> float:
    """What part of all changes the chosen rows make, without signs: errors of two places may cancel by chance."""
    rows = [*rows]
    size = change_of(rows, which)
    whole = sum(map(size, rows))
    return sum(map(size, chosen)) / whole if whole > 0 else 0.0


def saw_backward(rows: Iterable[Row]) -> bool:
    """Whether gradients reached the ops, by a loss or by ``project``."""
    rows = [*rows]
    return bool(losses_of(rows)) or any(row.measured.projections for row in rows)


def is_all_seen(report: Report) -> bool:
    """Whether all that may round was seen, and its backward passes came to their ends: else no error of a loss is known."""
    return not (report.compiled or report.backward_raised)


def shares_known(report: Report) -> bool:
    """Whether it is known which op makes the error: not without a backward pass, nor where the loss or its gradients are not finite."""
    return is_all_seen(report) and share(report.rows, report.rows) > 0


def change_of(rows: Iterable[Row], which: Run = "ran") -> Callable[[Row], float]:
    """The size of the change that a row makes of the losses, and of random sums of the outputs (``project``).

    All of them count alike, whatever their sizes are.
    """
    rows = [*rows]
    outputs = [None] if any(row.measured.projections for row in rows) else []
    of: list[str | None] = [*losses_of(rows), *outputs]
    whole = {each: _total(rows, each, "ran") or _total(rows, each, "low") or 1.0 for each in of}
    return lambda row: math.sqrt(sum(squares(row, each, which) / whole[each] for each in of))


def losses_of(rows: Iterable[Row]) -> list[str]:
    return [*dict.fromkeys(each.loss for row in rows for each in row.measured.losses if not each.choice)]


def squares(row: Row, loss: str | None, which: Run = "ran") -> float:
    """Of the changes of a loss in each backward pass, or of random sums of the outputs."""
    values = row.measured
    if which in FORMATS:
        found = values.in_format(which)
        own = found.projected if found and loss is None else 0.0
        own += sum(each.squares for each in (found.losses if found else ()) if each.loss == loss)
        return own + squares(row, loss, "low") * not_in_format(row, which)
    if loss is None:
        return {"ran": values.projected, "low": values.projected_low, "rounding": values.projected_rounding}[which]
    field = {"ran": "squares", "low": "squares_low", "rounding": "squares_rounding"}[which]
    return sum((getattr(each, field) for each in values.losses if each.loss == loss), 0.0)


def not_in_format(row: Row, name: str) -> float:
    """Which part of the calls of a row cannot run in 8 bits."""
    found = row.measured.in_format(name)
    return 1 - min(1.0, found.calls / max(1, row.measured.calls)) if found else 1.0


def rounds_nothing(row: Row, low: str) -> bool:
    error = row.measured.ran
    return row.runs_in == [low] and error.reference_squares > 0 and error.squares == 0


def hands_on(row: Row, edge: Edge, low: str) -> bool:
    """Whether those that use the result of a row use the argument: of calls in several places it is not known of which. A difference of near numbers
    rounds nothing, and would if these were not rounded before.
    """
    values = row.measured
    would_round = values.projected_rounding > 0 or any(each.squares_rounding > 0 for each in values.losses)
    exact = rounds_nothing(row, low) and not would_round and edge.count >= row.calls
    return exact or not _core.computes(encodable(row.op))


def _total(rows: list[Row], loss: str | None, which: Run) -> float:
    return sum(squares(row, loss, which) for row in rows)


def with_values(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row.values]


def why_unmeasured(rows: Iterable[Row], *, backward: bool = False) -> tuple[int, str]:
    """How many calls of some rows were not measured, and why: 0 and an empty text if all were."""
    reasons = added_counts((row.unmeasured_backward if backward else row.unmeasured) or {} for row in rows)
    return sum(reasons.values()), ", ".join(UNMEASURED.get(reason, reason) for reason in reasons)
