"""What an edit of a policy would change in the casts and in the time of what a report has recorded.

A report with values knows which rows made the tensors that each row was given (``edges``: maker, row, dtype, how many, how many numbers).
An op that moves to another dtype takes its own casts away, and gives its neighbours some; ops that follow their inputs move with it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import habana_mp._core as _core
from habana_mp._report.numbers import local_error, with_values
from habana_mp._show.units import encodable

_WIDE = "float32"
_FIXED = {"lower": "low", "fp32": _WIDE, "rest fp32": _WIDE, "no kernel": _WIDE}
_FOLLOWS = frozenset(["promote", "first input", "unlisted", "left alone"])
_CASTS = frozenset(["to", "_to_copy", "type", "float", "bfloat16", "half"])  # whose result is what they say
_ROUNDING = {"bfloat16": 2.0**-8 / math.sqrt(6), "float16": 2.0**-11 / math.sqrt(6)}  # relative, on average
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Effect:
    """``casts`` more or fewer in forward passes, and by how many ``seconds`` all steps of the block get longer, about.

    ``left`` is which part of its error each row keeps that moves to float32: all of it where it is given low numbers and hands its result to
    ops that cast it back, and what rounding makes where only the latter is so.
    """

    casts: int
    seconds: float
    left: dict[int, float] = field(default_factory=dict)


class Simulation:
    """The rows of a report, and what they would be with an op in another dtype."""

    def __init__(self, report: dict[str, Any]) -> None:
        self._rows = report["rows"]
        self._low = report["low_dtype"]
        self._edges: dict[int, list[tuple[int, str, int, int]]] = {}
        self._users: dict[int, list[int]] = {}
        for maker, row, dtype, count, numbers in report.get("edges", []):
            self._edges.setdefault(row, []).append((maker, dtype, count, numbers))
            self._users.setdefault(maker, []).append(row)
        forward = sum(cast["bytes"] for row in self._rows for cast in row["casts"])
        # Those of backward passes are the same ones back.
        self._seconds_of_byte = report["cast_seconds"] / forward if forward else 0.0
        self._overheads = {name: self._smallest(name) for name in ("ran_seconds", "other_seconds")}
        ops = report["op_seconds"]
        self._with_backward = 1 + report.get("backward_seconds", 0.0) / ops if ops else 1.0

    def effect(self, places: Collection[tuple[str, str]], dtype: str) -> Effect:
        """Of ops in ``dtype``, each in the modules of one path."""
        casts, size = 0, 0.0
        own = {number for number, row in enumerate(self._rows) if (row["op"], row["module"]) in places}
        moved = self._moved(own, dtype)
        for row in {*own, *moved, *(user for number in moved for user in self._users.get(number, []))}:
            before, after = self._casts(row, {}), self._casts(row, moved, own, dtype)
            casts += after[0] - before[0]
            size += after[1] - before[1]
        ops = sum(self._other_time(self._rows[row]) for row in moved)
        computing = [row for row in moved if dtype == _WIDE and _core.computes(encodable(self._rows[row]["op"]))]
        left = {row: self._left(row, moved) for row in computing}
        return Effect(casts, size * self._seconds_of_byte + ops * self._with_backward, left)

    def _left(self, number: int, moved: dict[int, str]) -> float:
        row, readers = self._rows[number], self._readers(number, moved)
        cast_back = bool(readers) and all(
            moved.get(reader, self._wanted(reader, moved)) == self._low for reader in readers
        )
        if not cast_back:
            return 0.0
        if all(self._given(edge, moved) == self._low for edge in self._inputs(number)):
            return 1.0
        error = float(local_error(row["values"]["ran"])) if row.get("values") else 0.0
        return min(1.0, _ROUNDING[self._low] / error) if 0 < error < math.inf else 0.0

    def _readers(self, number: int, moved: dict[int, str]) -> set[int]:
        """The rows that use a result. Views and the like hand its numbers on as they are: they count for those that use theirs.

        The users of a view may be those of what it is a view of.
        """
        found: set[int] = set()
        waiting, seen = [number], {number}
        while waiting:
            for user in self._users.get(waiting.pop(), []):
                if user not in seen:
                    seen.add(user)
                    hands_on = user in moved and not _core.computes(encodable(self._rows[user]["op"]))
                    (waiting.append if hands_on else found.add)(user)
        return found

    def _timed(self) -> Iterator[dict[str, Any]]:
        return (row for row in with_values(self._rows) if row["values"].get("other_seconds") and row["values"]["calls"])

    def _smallest(self, name: str) -> float:
        """Per call: what a call takes that computes next to nothing."""
        return min((row["values"][name] / row["values"]["calls"] for row in self._timed()), default=0.0)

    def _other_time(self, row: dict[str, Any]) -> float:
        """By how much the calls of a row take longer in the other dtype, what every call takes left out."""
        values = row.get("values")
        if not values or not values.get("other_seconds"):
            return 0.0
        inside = sum(cast["seconds"] for cast in row["casts"]) if row["front_end"] == "autocast" else 0.0
        ran, other = (max(0.0, values[name] - values["calls"] * overhead) for name, overhead in self._overheads.items())
        return float(other - max(0.0, ran - inside))

    def _moved(self, own: Collection[int], dtype: str) -> dict[int, str]:
        """The rows that would run in another dtype, with it: the own ones, and those that follow them."""
        moved = {
            number: dtype
            for number, row in enumerate(self._rows)
            if number in own and row["policy"] and row["runs_in"] and row["runs_in"] != [dtype]
        }
        waiting = [user for number in moved for user in self._users.get(number, [])]
        while waiting:
            number = waiting.pop()
            row = self._rows[number]
            if (
                number in moved
                or row["decision"] not in _FOLLOWS
                or row["op"] in _CASTS
                or row["runs_in"] in ([], [dtype])
            ):
                continue
            given = [self._given(edge, moved) for edge in self._edges.get(number, [])]
            if dtype == _WIDE or all(each == dtype for each in given):
                moved[number] = dtype
                waiting += self._users.get(number, [])
        return moved

    def _given(self, edge: tuple[int, str, int, int], moved: dict[int, str]) -> str:
        maker, dtype, _, _ = edge
        return moved.get(maker, dtype)

    def _casts(
        self, number: int, moved: dict[int, str], own: Collection[int] = (), dtype: str = ""
    ) -> tuple[int, float]:
        """How many casts the row needs, and their bytes, with the rows ``own`` listed for ``dtype``."""
        wanted = dtype if number in own and self._rows[number]["policy"] else self._wanted(number, moved)
        if not wanted:
            return 0, 0.0
        edges = self._inputs(number) if wanted == self._low else self._edges.get(number, [])
        casts = [edge for edge in edges if self._given(edge, moved) not in (wanted, *_NOT_CAST)]
        return sum(edge[2] for edge in casts), float(sum(edge[3] for edge in casts) * _BYTES[wanted])

    def _wanted(self, number: int, moved: dict[int, str]) -> str:
        """The dtype that a row casts to by its list; "" where it takes what it is given."""
        decision = self._rows[number]["decision"]
        if decision == "promote":
            return _WIDE if _WIDE in [self._given(edge, moved) for edge in self._edges.get(number, [])] else ""
        wanted = _FIXED.get(decision, "")
        return self._low if wanted == "low" else wanted

    def _inputs(self, number: int) -> list[tuple[int, str, int, int]]:
        """What a row casts to the low dtype."""
        row, edges = self._rows[number], self._edges.get(number, [])
        if not _core.is_norm(encodable(row["op"])):
            return edges
        # Its scale and shift are not cast (D14): no call has made them. Where none made its input, that is one of them.
        made = [edge for edge in edges if edge[0] >= 0]
        return made or [(maker, dtype, min(count, row["calls"]), size) for maker, dtype, count, size in edges]


_NOT_CAST = frozenset(_core.DTYPES) - frozenset(_core.SOURCE_DTYPES)
