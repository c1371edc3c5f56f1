"""What a search decides on: ops, or ops in some modules, with what their low dtype does to the results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import habana_mp._core as _core
from habana_mp._report.findings.groups import grouped, path_with_stars
from habana_mp._report.numbers import with_values

Row = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """An op, or an op in some modules (``name`` is "mul in model.rotary_emb"), as one run in float32 saw it.

    ``error`` is what its low dtype alone would do to the outputs or the loss, as a part of their size, to first order; infinite where it loses
    numbers. ``hidden``: no gradient comes to some of its results (the angles of rotary positions), so that the error may be larger.
    ``numbers`` is how many it computes.
    """

    name: str
    op: str
    modules: str
    error: float
    hidden: bool
    numbers: int


class Parts:
    """The parts of a step, in the order in which they were called first, and which of them each row of a report is of."""

    def __init__(self, report: dict[str, Any], per: str, size_of_result: float) -> None:
        self._per = per
        rows = [row for row in with_values(report["rows"]) if _is_decided(row)]
        error = _error(report, rows, size_of_result)
        self.all = [_part(self._name(group[0]), group, error) for group in grouped(rows, self._name)]
        self._index = {part.name: i for i, part in enumerate(self.all)}

    def of(self, row: Row) -> int | None:
        """The number of the part that a row of a report is of, also of a report of another run."""
        return self._index.get(self._name(row)) if row["policy"] else None

    def __len__(self) -> int:
        return len(self.all)

    def __iter__(self) -> Iterator[Part]:
        return iter(self.all)

    @property
    def ops(self) -> int:
        """How many ops the parts are of."""
        return len({part.op for part in self.all})

    def _name(self, row: Row) -> str:
        path = path_with_stars(row["module"]) if self._per == "module" else ""
        return f"{row['op']} in {path}" if path else str(row["op"])


def _is_decided(row: Row) -> bool:
    return bool(row["policy"] and row["values"]["low"]["reference_squares"] and _core.computes(row["op"]))


def _part(name: str, rows: list[Row], error: Callable[[list[Row]], float]) -> Part:
    values = [row["values"] for row in rows]
    size = math.inf if any(each["low"]["lost"] for each in values) else error(rows)
    hidden = any(each["changes"] + each["projections"] == 0 for each in values)
    numbers = sum(each["range"]["numbers"] for each in values)
    return Part(name, rows[0]["op"], name.partition(" in ")[2], size, hidden, numbers)


def _error(report: dict[str, Any], rows: list[Row], size_of_result: float) -> Callable[[list[Row]], float]:
    """The error of some rows: of the loss where the step has a backward pass, else of its outputs."""
    if any(row["values"]["changes"] for row in rows):
        whole = size_of_result or 1.0
        return lambda some: math.sqrt(sum(row["values"]["change_low"] ** 2 for row in some)) / whole
    squares = report.get("projected_squares") or 1.0
    return lambda some: math.sqrt(sum(row["values"]["projected_low"] for row in some) / squares)
