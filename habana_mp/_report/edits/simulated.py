"""What an edit of a policy would change in the casts and in the time of what a report has recorded.

A report with values knows which rows made the tensors that each row was given (``edges``: maker, row, dtype, how many, how many numbers).
An op that moves to another dtype takes its own casts away, and gives its neighbours some; ops that follow their inputs move with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import cast

from msgspec import structs

import habana_mp._core as _core
from habana_mp._autocast.module_lines import lines_of
from habana_mp._policy.homes import is_in_place
from habana_mp._policy.policy import Policy
from habana_mp._report.data import ROOT, Edge, Report
from habana_mp._report.edits.times import Times
from habana_mp._report.errors.objective import Left, Lowered, Rounded
from habana_mp._report.formats import FORMATS
from habana_mp._report.numbers import Run, hands_on, rounds_nothing
from habana_mp._show.units import encodable

_WIDE = "float32"
# The rules of rows that cast what is not of one dtype: action, listed. What the others cast depends on the order of their arguments.
_RULES = {
    **{name: (name, True) for name in ("lower", *FORMATS, "fp32", "promote")},
    "rest fp32": ("fp32", False),
    "no kernel": ("fp32", True),
}
_INPUT, _AFFINE = map(_core.ROLES.index, ("input", "affine"))
# Rows that a list has run in the low dtype, what is in 8 bits among them: its error is of the format that it had.
_LOWERED = frozenset(["lower", *FORMATS])
_BY_LISTS = _LOWERED | frozenset(["fp32", "promote", "first input", "unlisted", "left alone", "rest fp32"])
_MOST_VISITS = 8  # of each row, on average
_FOLLOWS = frozenset(["promote", "first input", "unlisted", "left alone", "in place"])
_CASTS = frozenset(["to", "_to_copy", "type", "float", "bfloat16", "half"])  # whose result is what they say
_FUSED = frozenset(["lstm"])  # with float32 alone it is one op of oneDNN: no list is asked of what is inside
_LAYER = "mkldnn_rnn_layer"  # that one, in bfloat16 too where the CPU has it
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Effect:
    """``casts`` more or fewer in forward passes, and by how many ``seconds`` all steps of the block get longer, about.

    ``left`` is what each row keeps of its error that moves to float32: what it hands to ops that cast it back is rounded there. ``low`` are
    the rows that move to the low dtype, or into 8 bits.
    """

    casts: int = 0
    seconds: float = 0.0
    left: dict[int, Left] = field(default_factory=dict)
    low: dict[int, Lowered] = field(default_factory=dict)


class Simulation:
    """The rows of a report, and what they would be with ops in other lists."""

    def __init__(self, report: Report) -> None:
        self._rows = report.rows
        self._low: str = report.low_dtype or ""
        self._edges: dict[int, list[Edge]] = {}
        self._users: dict[int, list[Edge]] = {}
        fused = {row.module: number for number, row in enumerate(self._rows) if row.op in _FUSED}
        for edge in report.edges or []:
            if edge.maker < 0 and self._rows[edge.row].op == _LAYER:  # its own casts
                edge = structs.replace(edge, maker=fused.get(self._rows[edge.row].module, -1))
            self._edges.setdefault(edge.row, []).append(edge)
            self._users.setdefault(edge.maker, []).append(edge)
        # By the maker: those that read what it makes, also inside of an op that was given it.
        self._read_by: dict[int, set[int]] = {}
        for read in report.reads or []:
            if read.second >= 0:
                self._read_by.setdefault(read.maker, set()).add(read.second)
        # By the maker: ops that return what they are given, such as dropout in eval mode. They may cast it.
        self._passing: dict[int, list[int]] = {}
        for edge in report.edges or []:
            row = self._rows[edge.row]
            if row.decision in _LOWERED and not row.made_bytes and edge.row not in self._users:
                self._passing.setdefault(edge.maker, []).append(edge.row)
        self._times = Times(report)
        rows = [*enumerate(self._rows)]
        self._in_place = frozenset(number for number, row in rows if is_in_place(row.op))
        self._by_first_now = self._in_place.union(number for number, row in rows if row.decision == "first input")
        self._norms = frozenset(each for each, row in rows if row.op == "rms_norm" or _core.is_norm(encodable(row.op)))
        self._inside = dict(self._looked_into())
        self._casts_as_ran: dict[int, tuple[int, float]] = {}

    def effect(
        self, listed: Mapping[int, str], following: Collection[int] = (), by_first: Collection[int] | None = None
    ) -> Effect:
        """Of rows in the list for float32, for the low dtype or for 8 bits, by their numbers and these dtypes or lists, and of rows in no list any more.
        What cannot run in 8 bits, or was not measured so, runs in the low dtype.

        ``by_first``: those of rows in no list that take the dtype of their first argument; by default as they did.
        """
        casts, in_casts = 0, 0.0
        self._by_first = self._norms.union(self._by_first_now if by_first is None else by_first)
        hidden = {row for number, inside in self._inside.items() if listed.get(number) == _WIDE for row in inside}
        formats = {
            row: name
            for row, name in listed.items()
            if self._rows[row].policy and row not in hidden and self._rows[row].measured.in_format(name)
        }
        listed = {row: self._low if to in FORMATS else to for row, to in listed.items() if row not in hidden}
        following = {*following, *hidden}
        moved = self._moved(listed, following, hidden)
        for row in {
            *listed,
            *following,
            *moved,
            *(edge.row for number in moved for edge in self._users.get(number, [])),
        }:
            before, after = self._casts_now(row), self._casts(row, moved, listed, following)
            casts += after[0] - before[0]
            in_casts += self._times.in_casts(self._rows[row], before[1], after[1])
        ops = sum(self._times.other(self._rows[row]) for row in moved if row not in formats)
        in_formats = sum(self._times.in_format(self._rows[row], name) for row, name in formats.items())
        wide = [row for row, to in moved.items() if to == _WIDE and self._rows[row].values]
        return Effect(
            casts,
            # Of inference alone: where weights require gradients no call is in 8 bits.
            in_casts + ops + in_formats,
            {row: self._left(row, moved, listed, following) for row in wide if not self._stays_low_inside(row, moved)}
            | dict(self._left_inside(moved, listed)),
            {
                row: Lowered(1.0 if row in listed else 1 - self._wide_part(row, moved), self._read_low(row, moved))
                for row, to in moved.items()
                if to == self._low
            }
            | {
                row: Lowered(1.0, self._read_low(row, moved) if row in moved else Rounded(), cast(Run, name))
                for row, name in formats.items()
            },
        )

    def _looked_into(self) -> Iterator[tuple[int, set[int]]]:
        """Rows that are looked at op by op, such as recurrent layers, as they read what they make without being given it; with each, the rows inside of
        it in the low dtype.
        """
        for number, readers in self._read_by.items():
            inside = readers - {edge.row for edge in self._users.get(number, [])}
            low = {row for row in inside if self._rows[row].runs_in == [self._low]}
            several = self._rows[number].measured.calls > self._rows[number].calls
            if several and number in inside and self._kept_low(low):
                yield number, low - {number}

    def _kept_low(self, inside: Collection[int]) -> list[int]:
        """Those of the rows inside of another one that a list decides."""
        return [row for row in inside if self._rows[row].decision in _LOWERED]

    def _wide_inside(self, moved: Mapping[int, str]) -> list[int]:
        """Rows whose error low ops inside of them make, such as a gru's linear layers, where all of these move to float32."""
        return [
            number
            for number, inside in self._inside.items()
            if all(moved.get(row) == _WIDE for row in self._kept_low(inside))
        ]

    def _left_inside(self, moved: dict[int, str], listed: Mapping[int, str]) -> Iterator[tuple[int, Left]]:
        for number in self._wide_inside(moved):
            yield from ((row, Left()) for row in self._inside[number])
            yield number, Left(rounded=self._rounded(number, moved, listed)) if number in moved else Left()

    def _stays_low_inside(self, number: int, moved: Mapping[int, str]) -> bool:
        """Whether a list keeps something inside of a row low: a GRU in float32 with ``linear`` in a list."""
        return any(row not in moved for row in self._kept_low(self._inside.get(number, ())))

    def _wide_part(self, number: int, moved: dict[int, str]) -> float:
        """Which part of the calls of a row that follows its inputs is given something in float32, at most."""
        wide = sum(edge.count for edge in self._followed_edges(number) if self._given(edge, moved) == _WIDE)
        return min(1.0, wide / max(1, self._rows[number].calls))

    def _followed_edges(self, number: int) -> list[Edge]:
        """The arguments whose dtype a row takes that no list decides about: beside others one without dimensions does not count."""
        edges = self._edges.get(number, [])
        first = [edge for edge in edges if edge.first and number in self._by_first]
        return first or [edge for edge in edges if not edge.zero_dim] or edges

    def under(self, policy: Policy) -> Effect:
        """Of another policy for the whole model. What ran past the lists stays as it is."""
        lines = lines_of(policy)
        listed, following, by_first = {}, set(), set()
        for number, row in enumerate(self._rows):
            if row.decision not in _BY_LISTS:
                continue
            rule = lines.policy_of(lines.of(row.where.path))._rule(row.op)
            to = {"fp32": _WIDE, "lower": self._low}.get(rule.action, rule.action if rule.action in FORMATS else None)
            computes = _core.computes(encodable(row.op)) and number not in self._in_place
            if rule.action == "rest" and rule.rest == "fp32" and computes:
                if number in self._inside and row.decision not in _LOWERED:
                    continue  # the lists decide about what is inside of it
                to = _WIDE
            first = (rule.action == "rest" and rule.rest == "first_input") or number in self._in_place
            if to is not None:
                listed[number] = to
                continue
            if first:
                by_first.add(number)
            others = any(edge.first < edge.count for edge in self._edges.get(number, []))
            if row.decision not in _FOLLOWS or (others and first != (number in self._by_first_now)):
                following.add(number)
        return self.effect(listed, following, by_first)

    def _left(self, number: int, moved: dict[int, str], listed: Mapping[int, str], following: Collection[int]) -> Left:
        unrounded = any(edge.maker in moved and edge.dtype == self._low for edge in self._edges.get(number, []))
        still_exact = rounds_nothing(self._rows[number], self._low) and not unrounded
        rounded = Rounded() if still_exact else self._rounded(number, moved, listed)
        if number in listed:
            return Left(rounded=rounded)
        # Of a row that follows its inputs those calls alone move that are given something in float32, if by an earlier call of the row.
        edges = self._followed_edges(number)
        low = edges if number in following else [edge for edge in edges if edge.dtype != _WIDE]
        wide = sum(edge.count for edge in low if self._given(edge, moved) == _WIDE)
        # The calls that were given float32 alone have no error.
        calls = min(self._rows[number].calls, sum(edge.count for edge in low))
        part = min(1.0, wide / max(1, calls))
        return Left(1 - part, part, rounded)

    def _rounded(self, number: int, moved: dict[int, str], listed: Mapping[int, str]) -> Rounded:
        """Who casts the float32 results of a row back to the low dtype."""
        if self._is_cast_on_the_way(number, moved):
            users = self._users[number]
            same = any(_core.computes(encodable(self._rows[each].op)) for each in self._passing[number])  # no view
            every = {edge.row for edge in users} | self._read_by.get(number, set()) | ({ROOT} if same else set())
            return Rounded(dict.fromkeys(every, 1.0), {edge.row: edge.count for edge in users})
        to = {**listed, **moved}
        # What was in float32 as it ran has been cast then, too: that is an error of those that read it.
        return self._readers(
            number, moved, lambda row, was: was != _WIDE and (to.get(row) or self._wanted(row, moved)) == self._low
        )

    def _read_low(self, number: int, moved: dict[int, str]) -> Rounded:
        """Who uses the results of a row in the low dtype."""
        lows = (self._low, [self._low])
        return self._readers(
            number, moved, lambda row, _: row != number and (moved.get(row) or self._rows[row].runs_in) in lows
        )

    def _readers(
        self,
        number: int,
        moved: dict[int, str],
        rounds: Callable[[int, str], bool],
        behind: dict[int, Rounded] | None = None,
    ) -> Rounded:
        """Who uses a result, by rows and the dtypes that they were given. Relu and the like hand its numbers on as they are: those that use theirs count."""
        behind = {} if behind is None else behind  # by those that hand on: each is looked at once
        parts: dict[int, float | Rounded] = {}
        rounded: Counter[int] = Counter()
        counts: Counter[int] = Counter()
        for edge in self._users.get(number, []):
            user = edge.row
            if user in moved and hands_on(self._rows[user], edge, self._low):
                if user not in behind:
                    behind[user] = Rounded()  # of a circle
                    behind[user] = self._readers(user, moved, rounds, behind)
                if not behind[user].counts:  # a view: its users are among those of what it is a view of
                    continue
                parts[user] = behind[user]
            else:
                rounded[user] += edge.count if rounds(user, edge.dtype) else 0
            counts[user] += edge.count
        parts |= {user: count / counts[user] for user, count in rounded.items() if user not in parts}
        inside = self._read_by.get(number, set()) - parts.keys()
        return Rounded(parts | {reader: float(rounds(reader, self._low)) for reader in inside}, counts)

    def _moved(
        self, listed: Mapping[int, str], following: Collection[int] = (), hidden: Collection[int] = ()
    ) -> dict[int, str]:
        """The rows that would run in another dtype, with it: those in a list, and those that follow them. ``hidden``: no list is asked of them, as they
        are inside of an op in float32.
        """
        moved = {
            number: dtype
            for number, dtype in listed.items()
            if (row := self._rows[number]).policy and row.runs_in and row.runs_in != [dtype]
        } | dict.fromkeys(hidden, _WIDE)
        waiting = [*following, *self._users_of(moved)]
        for number in self._wide_inside(moved):
            settled = [
                row
                for row in (number, *self._inside[number])
                if self._rows[row].decision in _FOLLOWS and self._rows[row].runs_in == [self._low]
            ]
            moved |= dict.fromkeys(settled, _WIDE)
            waiting += self._users_of(settled)
        followers = self._followers(waiting, {*listed, *hidden, *moved}, following)
        # Two calls of an op in one module may seem to make each other's arguments. Such a circle is in float32 if something from outside of it is, so what
        # is not known yet does not count.
        self._settle(followers, moved, following, unknown={*followers})
        self._settle(followers, moved, following, unknown=set())
        for number, inside in self._inside.items():
            if self._rows[number].op in _FUSED and moved.get(number) == _WIDE:
                moved |= dict.fromkeys(inside, _WIDE)
        return moved

    def _users_of(self, rows: Iterable[int]) -> list[int]:
        return [edge.row for number in rows for edge in self._users.get(number, [])]

    def _followers(self, begin: Iterable[int], settled: Collection[int], following: Collection[int]) -> set[int]:
        """Of these rows and of those behind them, the ones that take the dtype of what they are given."""
        found: set[int] = set()
        waiting = [*begin]
        while waiting:
            number = waiting.pop()
            row = self._rows[number]
            follows = number in following or (row.decision in _FOLLOWS and row.op not in _CASTS)
            if number not in found and number not in settled and follows and row.runs_in:
                found.add(number)
                waiting += self._users_of([number])
        return found

    def _settle(self, rows: set[int], moved: dict[int, str], following: Collection[int], unknown: set[int]) -> None:
        """Add those of the rows to ``moved`` that follow what moves, until none changes any more."""
        waiting, left = [*rows], _MOST_VISITS * len(self._rows)
        while waiting and left:
            left -= 1
            number = waiting.pop()
            edges = [edge for edge in self._followed_edges(number) if edge.maker not in unknown]
            if not edges:
                continue
            runs_in = self._rows[number].runs_in
            to = self._followed(number, edges, moved, anew=number in following)
            before, after = moved.get(number, ""), "" if [to] == runs_in else to
            if number in unknown or after != before:
                unknown.discard(number)
                if after:
                    moved[number] = after
                else:
                    moved.pop(number, None)
                waiting += rows.intersection(self._users_of([number]))

    def _followed(self, number: int, edges: list[Edge], moved: dict[int, str], *, anew: bool) -> str:
        """The dtype in which a row runs that follows its inputs, "" where these do not change it. ``anew``: a list decided before."""
        given = [self._given(edge, moved) for edge in edges]
        if anew and self._rows[number].runs_in == [_WIDE] and self._low in given and self._wide_part(number, moved) < 1:
            return self._low  # some calls
        if any(to == _WIDE and (anew or edge.maker in moved) for edge, to in zip(edges, given, strict=True)):
            return _WIDE
        return self._low if given and all(to == self._low for to in given) else ""

    def _given(self, edge: Edge, moved: dict[int, str]) -> str:
        to = moved.get(edge.maker, edge.dtype)
        return self._low if to == _WIDE and self._is_cast_on_the_way(edge.maker, moved, edge.row) else to

    def _is_cast_on_the_way(self, maker: int, moved: dict[int, str], reader: int = -1) -> bool:
        """Whether an op that passes on what a row makes now casts it to the low dtype, for all others that read it."""
        passing = self._passing.get(maker, []) if maker in moved else []
        return reader not in passing and any(number not in moved for number in passing)

    def _casts_now(self, number: int) -> tuple[int, float]:
        if number not in self._casts_as_ran:
            self._casts_as_ran[number] = self._casts(number, {})
        return self._casts_as_ran[number]

    def _casts(
        self,
        number: int,
        moved: dict[int, str],
        listed: Mapping[int, str] = MappingProxyType({}),
        following: Collection[int] = (),
    ) -> tuple[int, float]:
        """How many casts the row needs, and their bytes."""
        row = self._rows[number]
        rule = _RULES.get(row.decision)
        if number in listed and row.policy:
            rule = ("lower" if listed[number] == self._low else "fp32", True)
        elif number in following:
            rule = None
        to, roles = self._decided(number, moved, rule)
        given = [(edge, role, self._given(edge, moved)) for edge, role in self._arguments(number)]
        casts = [edge for edge, role, own in given if roles >> role & 1 and own in _core.SOURCE_DTYPES and own != to]
        return sum(edge.count for edge in casts), float(sum(edge.numbers for edge in casts) * _BYTES.get(to, 0))

    def _wanted(self, number: int, moved: dict[int, str]) -> str:
        return self._decided(number, moved, _RULES.get(self._rows[number].decision))[0]

    def _decided(self, number: int, moved: dict[int, str], rule: tuple[str, bool] | None) -> tuple[str, int]:
        """The dtype that a row casts to by a rule, and the roles of what it casts; "" where it takes what it is given."""
        if rule is None:
            return "", 0
        given = [
            (_core.DTYPES.index(self._given(edge, moved)), edge.zero_dim, role)
            for edge, role in self._arguments(number)
        ]
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
