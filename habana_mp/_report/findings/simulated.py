"""What an edit of a policy would change in the casts and in the time of what a report has recorded.

A report with values knows which rows made the tensors that each row was given (``edges``: maker, row, dtype, how many, how many numbers).
An op that moves to another dtype takes its own casts away, and gives its neighbours some; ops that follow their inputs move with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from msgspec import structs

import habana_mp._core as _core
from habana_mp._report.data import Edge, Report, Row, Values
from habana_mp._report.numbers import local_error
from habana_mp._show.units import encodable

_WIDE = "float32"
# The rules of rows that cast what is not of one dtype: action, listed. What the others cast depends on the order of their arguments.
_RULES = {
    "lower": ("lower", True),
    "fp32": ("fp32", True),
    "rest fp32": ("fp32", False),
    "no kernel": ("fp32", True),
    "promote": ("promote", True),
}
_INPUT, _AFFINE = map(_core.ROLES.index, ("input", "affine"))
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

    def __init__(self, report: Report) -> None:
        self._rows = report.rows
        self._low: str = report.low_dtype or ""
        self._edges: dict[int, list[Edge]] = {}
        self._users: dict[int, list[int]] = {}
        for edge in report.edges or []:
            self._edges.setdefault(edge.row, []).append(edge)
            self._users.setdefault(edge.maker, []).append(edge.row)
        forward = sum(cast.bytes for row in self._rows for cast in row.casts)
        # Those of backward passes are the same ones back.
        self._seconds_of_byte = report.cast_seconds / forward if forward else 0.0
        self._ran_overhead = self._overhead(lambda values: values.ran_seconds)
        self._other_overhead = self._overhead(lambda values: values.other_seconds)
        ops = report.op_seconds
        self._with_backward = 1 + report.backward_seconds / ops if ops else 1.0

    def effect(self, places: Collection[tuple[str, str]], dtype: str) -> Effect:
        """Of ops in ``dtype``, each in the modules of one path."""
        casts, size = 0, 0.0
        own = {number for number, row in enumerate(self._rows) if (row.op, row.module) in places}
        moved = self._moved(own, dtype)
        for row in {*own, *moved, *(user for number in moved for user in self._users.get(number, []))}:
            before, after = self._casts(row, {}), self._casts(row, moved, own, dtype)
            casts += after[0] - before[0]
            size += after[1] - before[1]
        ops = sum(self._other_time(self._rows[row]) for row in moved)
        computing = [row for row in moved if dtype == _WIDE and _core.computes(encodable(self._rows[row].op))]
        left = {row: self._left(row, moved) for row in computing}
        return Effect(casts, size * self._seconds_of_byte + ops * self._with_backward, left)

    def _left(self, number: int, moved: dict[int, str]) -> float:
        row, readers = self._rows[number], self._readers(number, moved)
        cast_back = bool(readers) and all(
            moved.get(reader, self._wanted(reader, moved)) == self._low for reader in readers
        )
        if not cast_back:
            return 0.0
        if all(self._given(edge, moved) == self._low for edge, role in self._arguments(number) if role == _INPUT):
            return 1.0
        error = float(local_error(row.measured.ran))
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
                    hands_on = user in moved and not _core.computes(encodable(self._rows[user].op))
                    (waiting.append if hands_on else found.add)(user)
        return found

    def _overhead(self, seconds: Callable[[Values], float]) -> float:
        """Per call: what a call takes that computes next to nothing."""
        values = [row.measured for row in self._rows if row.measured.other_seconds and row.measured.calls]
        return min((seconds(each) / each.calls for each in values), default=0.0)

    def _other_time(self, row: Row) -> float:
        """By how much the calls of a row take longer in the other dtype, what every call takes left out."""
        values = row.measured
        if not values.other_seconds:
            return 0.0
        inside = sum(cast.seconds for cast in row.casts) if row.front_end == "autocast" else 0.0
        ran = max(0.0, values.ran_seconds - values.calls * self._ran_overhead)
        other = max(0.0, values.other_seconds - values.calls * self._other_overhead)
        return other - max(0.0, ran - inside)

    def _moved(self, own: Collection[int], dtype: str) -> dict[int, str]:
        """The rows that would run in another dtype, with it: the own ones, and those that follow them."""
        moved = {
            number: dtype
            for number, row in enumerate(self._rows)
            if number in own and row.policy and row.runs_in and row.runs_in != [dtype]
        }
        waiting = [user for number in moved for user in self._users.get(number, [])]
        while waiting:
            number = waiting.pop()
            row = self._rows[number]
            if number in moved or row.decision not in _FOLLOWS or row.op in _CASTS or row.runs_in in ([], [dtype]):
                continue
            given = [self._given(edge, moved) for edge in self._edges.get(number, [])]
            if dtype == _WIDE or all(each == dtype for each in given):
                moved[number] = dtype
                waiting += self._users.get(number, [])
        return moved

    def _given(self, edge: Edge, moved: dict[int, str]) -> str:
        return moved.get(edge.maker, edge.dtype)

    def _casts(
        self, number: int, moved: dict[int, str], own: Collection[int] = (), dtype: str = ""
    ) -> tuple[int, float]:
        """How many casts the row needs, and their bytes, with the rows ``own`` listed for ``dtype``."""
        row = self._rows[number]
        listed = ("lower" if dtype == self._low else "fp32", True)
        to, roles = self._decided(number, moved, listed if number in own and row.policy else _RULES.get(row.decision))
        given = [(edge, role, self._given(edge, moved)) for edge, role in self._arguments(number)]
        casts = [edge for edge, role, own in given if roles >> role & 1 and own in _core.SOURCE_DTYPES and own != to]
        return sum(edge.count for edge in casts), float(sum(edge.numbers for edge in casts) * _BYTES.get(to, 0))

    def _wanted(self, number: int, moved: dict[int, str]) -> str:
        return self._decided(number, moved, _RULES.get(self._rows[number].decision))[0]

    def _decided(self, number: int, moved: dict[int, str], rule: tuple[str, bool] | None) -> tuple[str, int]:
        """The dtype that a row casts to by a rule, and the roles of what it casts; "" where it takes what it is given."""
        if rule is None:
            return "", 0
        given = [(_core.DTYPES.index(self._given(edge, moved)), False, role) for edge, role in self._arguments(number)]
        low = _core.DTYPES.index(self._low)
        to, cause, roles = _core.decide(_core.ACTIONS.index(rule[0]), low, rule[1], tuple(given), False)
        return (_core.DTYPES[to], roles) if cause else ("", 0)

    def _arguments(self, number: int) -> Iterator[tuple[Edge, int]]:
        """What a row is given, with the roles: of a norm the scale and the shift are what no call has made, but for an input in each call."""
        row, edges = self._rows[number], self._edges.get(number, [])
        is_norm = _core.is_norm(encodable(row.op))
        no_input = is_norm and all(edge.maker < 0 for edge in edges)
        for edge in edges:
            affine = is_norm and edge.maker < 0
            inputs = min(edge.count, row.calls) if no_input else 0 if affine else edge.count
            if inputs:
                yield structs.replace(edge, count=inputs), _INPUT
            if affine:
                yield structs.replace(edge, count=edge.count - inputs, numbers=0 if inputs else edge.numbers), _AFFINE
