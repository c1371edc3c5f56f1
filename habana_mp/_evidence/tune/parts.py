"""What a search decides on: ops, or ops in some modules, with what their low dtype does to the results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import habana_mp._core as _core
from habana_mp._core import Entry
from habana_mp._policy.policy import Policy
from habana_mp._report.findings.groups import grouped, path_with_stars
from habana_mp._report.numbers import added, local_error, with_values

Row = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """An op, or an op in some modules, as one run in float32 measured it.

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


class Parts:
    """The parts of a step, in the order in which they were called first, and which of them each row of a report is of.

    ``report`` has the values of the step in float32, and the errors are those that the low dtype would make; or, with ``as_it_ran``, the values of the step
    under a policy, and the errors are those that it made. Then what ran in float32 alone is no part.
    What is not measured, because it only moves numbers or makes very large ones, is a part where ``base`` has it in its lower list: it is given rounded numbers.
    """

    def __init__(
        self, report: dict[str, Any], per: str, size_of_result: float, base: Policy, *, as_it_ran: bool
    ) -> None:
        self._per = per
        which, ending = ("ran", "") if as_it_ran else ("low", "_low")
        self.dtype = report["low_dtype"] if as_it_ran else "float32"  # of what the parts hand to each other
        named = (row for row in report["rows"] if row["policy"] and "::" not in row["op"])  # lists name no custom ops
        rows = [row for row in named if _is_measured(row, which) or _is_lower(row, base)]
        has_loss = any(row["values"]["changes"] for row in with_values(rows))
        # Of what the errors are: of a loss that the step calls backward on, of the results, or of each op alone where the results have no gradients.
        self.unit = "loss" if has_loss else "results" if report.get("projected_squares") else "op"
        error = _error(report, self.unit, size_of_result, which, ending)
        self.all = [_part(self._entry(group[0]), group, error, which) for group in grouped(rows, self._entry)]
        self._index = {part._entry: i for i, part in enumerate(self.all)}

    def scale(self, by: float) -> None:
        """The errors, where they are in another unit than what a run measures: of a loss that is scaled, of each op alone."""
        self.all = [replace(part, error=part.error * by) for part in self.all]

    def add_lowered(self, report: dict[str, Any], low: str) -> None:
        """What was lowered although no part was to be, of a report of that. Nothing is known of its error."""
        for row in report["rows"]:
            if row["decision"] == "lower" and low in row["runs_in"] and self.of(row) is None:
                self._index[self._entry(row)] = len(self.all)
                self.all.append(Part(self._entry(row), 0.0, True, 0))

    def of(self, row: Row) -> int | None:
        """The number of the part that a row of a report is of, also of a report of another run."""
        return self._index.get(self._entry(row)) if row["policy"] else None

    def __len__(self) -> int:
        return len(self.all)

    def __iter__(self) -> Iterator[Part]:
        return iter(self.all)

    @property
    def ops(self) -> int:
        """How many ops the parts are of."""
        return len({part.op for part in self.all})

    def _entry(self, row: Row) -> Entry:
        return Entry(op=row["op"], modules=path_with_stars(row["module"]) if self._per == "module" else "")


def _is_measured(row: Row, which: str) -> bool:
    values = row.get("values")
    return values is not None and bool(values[which]["reference_squares"]) and _core.computes(row["op"])


def _is_lower(row: Row, base: Policy) -> bool:
    values = row.get("values")
    is_rounded = not _core.computes(row["op"]) if values is None else bool(values["range"]["largest"])
    return is_rounded and base._rule(row["op"]).action == "lower"


def _part(entry: Entry, rows: list[Row], error: Callable[[list[Row]], float], which: str) -> Part:
    measured = [*with_values(rows)]
    values = [row["values"] for row in measured]
    size = math.inf if any(each[which]["lost"] for each in values) else error(measured)
    hidden = not values or any(each["changes"] + each["projections"] == 0 for each in values)
    numbers = sum(each["range"]["numbers"] for each in values)
    return Part(entry, size, hidden, numbers)


def _error(
    report: dict[str, Any], unit: str, size_of_result: float, which: str, ending: str
) -> Callable[[list[Row]], float]:
    """The error of some rows."""
    if unit == "op":
        return lambda some: float(local_error(added(row["values"][which] for row in some))) if some else 0.0
    key, power, whole = (
        ("change", 2, size_of_result**2) if unit == "loss" else ("projected", 1, report["projected_squares"])
    )
    return lambda some: math.sqrt(sum(abs(row["values"][key + ending]) ** power for row in some) / (whole or 1.0))
