"""What a search decides on: ops, or ops in some modules, with what their low dtype does to the results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import habana_mp._core as _core
from habana_mp._core import Entry
from habana_mp._policy.policy import Policy
from habana_mp._report.added import added, grouped
from habana_mp._report.data import Report, Row
from habana_mp._report.edits.edits import Edit, edits
from habana_mp._report.findings.unknown import error_of
from habana_mp._report.numbers import Run, local_error, losses_of, squares
from habana_mp._show.short import Short


@dataclass(frozen=True, repr=False)
class Part(Short):
    """An op, or an op in some modules, as one run measured it: under ``start``, or in float32 with ``others="lower"``.

    Attributes:
        error: how much its low dtype alone would change the outputs or the loss, relative to their size, to first order; infinite if it
            loses numbers.
        hidden: True if some of its results get no gradient, such as the angles of rotary positions. Its error may then be larger.
        numbers: how many numbers it computes.

    Example:
        >>> found = hmp.tune(lambda: model(x), 1e-2, cost="numbers")
        >>> max(found.parts, key=lambda each: each.part.error).part.name
        '...'
    """

    _entry: Entry  # the op in these modules, without a list
    error: float
    hidden: bool
    numbers: int

    @property
    def op(self) -> str:
        """The op."""
        return self._entry.op

    @property
    def modules(self) -> str:
        """The modules, or ""."""
        return self._entry.modules

    @property
    def name(self) -> str:
        """Such as "mul" or "mul in model.rotary_emb"."""
        return str(self._entry)

    def _line(self) -> str:
        return f"{self.name}, error {self.error:.2g}"


class Parts(list[Part]):
    """The parts of a step, in the order in which they were called first, and which of them each row of a report is of.

    ``report`` has the values of the step in float32, and the errors are those that the low dtype would make; or, with ``as_it_ran``, the values of the step
    under a policy, and the errors are those that it made. Then what ran in float32 alone is no part.
    What is not measured, because it only moves numbers or makes very large ones, is a part where ``base`` has it in its lower list: it is given rounded numbers.
    """

    def __init__(self, report: Report, per: str, size_of_result: float, base: Policy, *, as_it_ran: bool) -> None:
        self._per = per
        which: Run = "ran" if as_it_ran else "low"
        self.dtype = report.low_dtype if as_it_ran else "float32"  # of what the parts hand to each other
        named = (row for row in report.rows if row.policy and "::" not in row.op)  # lists name no custom ops
        rows = [row for row in named if _is_measured(row, which) or _is_lower(row, base)]
        losses = losses_of(rows)
        # Of what the errors are: of a loss that the step calls backward on, of the results, or of each op alone where the results have no gradients.
        self.unit = "loss" if losses else "results" if report.projected_squares else "op"
        error = _error(report, self.unit, size_of_result, which)
        super().__init__(_part(self._entry(group[0]), group, error, which) for group in grouped(rows, self._entry))
        self._index = {part._entry: i for i, part in enumerate(self)}

    def scale(self, by: float) -> None:
        """The errors, where they are in another unit than what a run measures: of a loss that is scaled, of each op alone."""
        self[:] = [replace(part, error=part.error * by) for part in self]

    def add_lowered(self, report: Report, low: str) -> None:
        """What was lowered although no part was to be, of a report of that. Nothing is known of its error."""
        for row in report.rows:
            if row.decision == "lower" and low in row.runs_in and self.of(row) is None:
                self._index[self._entry(row)] = len(self)
                self.append(Part(self._entry(row), 0.0, True, 0))

    def of(self, row: Row) -> int | None:
        """The number of the part that a row of a report is of, also of a report of another run."""
        return self._index.get(self._entry(row)) if row.policy else None

    @property
    def ops(self) -> int:
        """How many ops the parts are of."""
        return len({part.op for part in self})

    def _entry(self, row: Row) -> Entry:
        return Entry(op=row.op, modules=row.where.pattern if self._per == "module" else "")


def edits_in_formats(report: Report, per: str, formats: Sequence[str]) -> list[Edit]:
    """Those of the report; where no gradient has come to its ops, as under no_grad, each op in the list that changes its own results least, the ones
    that change least first.
    """
    if any(row.values and (row.values.losses or row.values.projections) for row in report.rows):
        return edits(report, per, formats)
    found: list[tuple[float, Edit]] = []
    for group in grouped(report.rows, lambda row: (row.op, row.where.pattern if per == "module" else "")):
        entry = Entry(op=group[0].op, modules=group[0].where.pattern if per == "module" else "")
        errors = {}
        for name in formats:
            measured = [each for row in group if row.values and (each := row.values.in_format(name))]
            if measured and not any(each.error.lost for each in measured):
                errors[name] = local_error(added(each.error for each in measured)).relative
        if errors:
            name = min(errors, key=lambda each: errors[each])
            why = f"changes its own results by {errors[name]:.2g}; no gradient shows what that does to those of the step (under no_grad there is none)"
            edit = Edit(
                f"+{entry}:{name}", entry.op, 0.0, 0, "", 0, 0.0, None, None, None, why, _list=name, _entry=entry
            )
            found.append((errors[name], edit))
    return [edit for _, edit in sorted(found, key=lambda each: each[0])]


def _is_measured(row: Row, which: Run) -> bool:
    return error_of(row, which).reference_squares > 0 and _core.computes(row.op)


def _is_lower(row: Row, base: Policy) -> bool:
    is_rounded = row.values.range.largest > 0 if row.values else not _core.computes(row.op)
    return is_rounded and base._rule(row.op).action == "lower"


def _part(entry: Entry, rows: list[Row], error: Callable[[list[Row]], float], which: Run) -> Part:
    values = [row.values for row in rows if row.values]
    size = math.inf if any(error_of(row, which).lost for row in rows) else error(rows)
    hidden = not values or any(not each.losses and each.projections == 0 for each in values)
    numbers = sum(each.range.numbers for each in values)
    return Part(entry, size, hidden, numbers)


def _error(report: Report, unit: str, size_of_result: float, which: Run) -> Callable[[list[Row]], float]:
    if unit == "op":
        return lambda some: float(local_error(added(error_of(row, which) for row in some)))
    of: list[str | None] = [*losses_of(report.rows)] if unit == "loss" else [None]
    whole = size_of_result**2 if unit == "loss" else report.projected_squares

    def error(some: list[Row]) -> float:
        sizes = (squares(row, loss, which) for row in some for loss in of)
        return math.sqrt(sum(sizes) / (whole or 1.0))

    return error
