"""How far each loss and the outputs of a report are off, and would be with other dtypes."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from habana_mp._report.data import ALL_READERS, Read, Report
from habana_mp._report.errors.choices import Choices
from habana_mp._report.errors.passes import Passes, Weights
from habana_mp._report.formats import FORMATS
from habana_mp._report.numbers import OUTPUTS, Run, is_all_seen, losses_of, not_in_format, squares

_LEAST = 0.01  # of the squares of errors that cancel


@dataclass(frozen=True)
class Rounded:
    """Which of the rows that read a result round it: of each by its number the part that does, and how often it reads. A row that hands the numbers on
    as they are has those that read its result in place of a part.
    """

    parts: Mapping[int, float | Rounded] = field(default_factory=dict)
    counts: Mapping[int, int] = field(default_factory=dict)

    def part(self, beside: Collection[int] = ()) -> float:
        """Of all of them, or of those that are not in ``beside``, by how often they read."""
        counts = {reader: count for reader, count in self.counts.items() if reader not in beside}
        weighed = sum(self.part_of(reader) * count for reader, count in counts.items())
        return weighed / sum(counts.values()) if weighed else 0.0

    def part_of(self, reader: int) -> float:
        part = self.parts.get(reader, 0.0)
        return part.part() if isinstance(part, Rounded) else part


@dataclass(frozen=True)
class Left:
    """Which part of the squares of its changes a row keeps that moves to float32: of those as it ran, and of those that rounding makes where others
    round its results.
    """

    ran: float = 0.0
    rounding: float = 1.0
    rounded: Rounded = field(default_factory=Rounded)


@dataclass(frozen=True)
class Lowered:
    """Which ``part`` of the calls of a row moves to the low dtype, or to a list of ops in 8 bits, and who rounds their results, too, in what was
    measured of these.
    """

    part: float = 1.0
    rounded: Rounded = field(default_factory=Rounded)
    which: Run = "low"


class _Read(NamedTuple):
    """Of the changes that the readers of a row make which round its results: their squares, their product with those of all readers, and the squares of
    these.
    """

    squares: float
    with_all: float
    squares_of_all: float


class _Choosing(NamedTuple):
    """The number of a row that chooses, and those of the rows that make what it chooses by."""

    row: int
    makers: set[int]


class Objective:
    """How far each loss is off, and the outputs in relation to their size, to first order: as the step ran, and as it would run.

    The root of the sum of squares over rows, and the mean over backward passes. What cancels by chance in one pass adds up in the next, so the
    products of two rows count as far as they are larger than chance makes them in so many passes (``Passes``). What follows from choices comes on top
    (``Choices``).
    """

    def __init__(self, report: Report) -> None:
        self._rows, self._all_seen = report.rows, is_all_seen(report)
        losses = losses_of(report.rows)
        passes: dict[str | None, float] = {each.loss: float(each.passes) for each in report.losses or []}
        sums = max((row.measured.projections for row in report.rows), default=0)
        self._passes_seen: dict[str | None, float] = passes | {None: float(sums)}
        self._scales: dict[str | None, float] = {each: passes.get(each, 0.0) for each in losses}
        if report.projected_squares or not losses:
            self._scales[None] = report.projected_squares or 0.0
        chosen = {loss.loss: loss.choice.row for loss in report.losses or [] if loss.choice}
        self._choosing: dict[str | None, _Choosing] = {
            key: _Choosing(row, {edge.maker for edge in report.edges or [] if edge.row == row})
            for key, row in chosen.items()
        }
        self._divisors = passes | self._scales  # of squares: also of choices
        self._passes_of: dict[str | None, Passes] = {}
        self._ran: dict[str | None, list[tuple[int, float]]] = {}
        self._reads: dict[tuple[int, str | None], list[Read]] = {}
        for read in report.reads or []:
            self._reads.setdefault((read.maker, read.loss), []).append(read)
        self.names = self._named(losses) | ({OUTPUTS: "the outputs"} if None in self._scales else {})
        self._choices = Choices(report, self._error) if self.known else None
        self._now = self.errors() if self.known else {}

    @property
    def flips(self) -> Mapping[int, float]:
        """How many choices of a row are others than in float32, where it is known what follows from that."""
        return self._choices.flips_of_rows if self._choices else {}

    def _named(self, losses: list[str]) -> dict[str, str]:
        """What to call each, by the key that it has in ``errors``."""
        if len(losses) < 2:
            return dict.fromkeys(losses, "the loss")
        short = {each: os.path.basename(each) for each in losses}  # noqa: PTH119 (a line is behind it)
        alike = Counter(short.values())
        return {each: (name if alike[name] == 1 else each) or "another" for each, name in short.items()}

    def full_name(self, loss: str) -> str:
        """``the loss``, ``the outputs``, or where there are several losses ``the loss of gan.py:41``."""
        return self.names[loss] if loss == OUTPUTS or self._losses < 2 else f"the loss of {self.names[loss]}"

    def off_by(self, loss: str | None = None) -> float:
        """Which part of the error of a loss, or of "outputs", may be chance: it is the mean over so many passes. Of none: the largest of all."""
        counts = [
            self._passes_seen.get(None if each == OUTPUTS else each, 0.0) for each in ([loss] if loss else self.names)
        ]
        return max((1 / math.sqrt(2 * max(1.0, count)) for count in counts), default=1.0)

    @property
    def _losses(self) -> int:
        return len(self.names) - (OUTPUTS in self.names)

    @property
    def known(self) -> bool:
        return self._all_seen and all(self._scales.values())

    @property
    def what(self) -> str:
        losses = [] if not self._losses else ["the loss"] if self._losses == 1 else ["the losses"]
        return " and ".join([*losses, *(["the outputs"] if OUTPUTS in self.names else [])])

    def errors(
        self, left: Mapping[int, Left] = MappingProxyType({}), low: Mapping[int, Lowered] = MappingProxyType({})
    ) -> dict[str, float]:
        """Of each loss, by the line that called backward, and of "outputs".

        ``left``: of rows in float32, what is left of their errors, by their numbers; ``low``: of rows in the low dtype, how much of them is.
        """
        flips = self._choices.squares(lambda choice: self._error(choice, left, low)) if self._choices else {}
        found = {}
        for loss, scale in self._scales.items():
            name = OUTPUTS if loss is None else loss
            found[name] = math.hypot(self._error(loss, left, low), math.sqrt(flips.get(name, 0.0) / scale))
        return found

    def _error(
        self,
        loss: str | None,
        left: Mapping[int, Left] = MappingProxyType({}),
        low: Mapping[int, Lowered] = MappingProxyType({}),
    ) -> float:
        """Without what follows from choices."""
        moved = {*left, *low}
        # Summed up in the order of their sizes: an edit that changes nothing is to be seen as such.
        terms, weights = [whole for number, whole in self._as_it_ran(loss) if number not in moved], Weights(moved)
        for number in moved:
            which: Run = low[number].which if number in low else "ran"
            whole = squares(self._rows[number], loss, which)
            if number in left:
                rounding = self._rounding(number, loss, left[number].rounded)
                terms.append(left[number].ran * whole + left[number].rounding * rounding)
                weights.add(number, "ran", left[number].ran)
                weights.add(number, "rounding", left[number].rounding * self._part_of(number, loss, rounding))
                continue
            part = low[number].part
            rounding = self._rounding(number, loss, low[number].rounded)
            # Those that read it lose that.
            terms.append(part * (whole - rounding) + (1 - part) * squares(self._rows[number], loss))
            # What rounded arguments give is rounded to other numbers: its sign is not that of ``rounding``.
            own = part * max(0.0, 1 - rounding / whole) if whole else 0.0
            weights.add(number, which, own)
            if which in FORMATS:
                weights.add(number, "low", own * not_in_format(self._rows[number], which))
            weights.add(number, "ran", 1 - part)
        total = sum(sorted(terms))
        both = total + self._passes(loss).together(weights)
        # Few passes cannot tell that all of it cancels: 0 is of what is not rounded.
        return math.sqrt(max(0.0, _LEAST * total, both) / self._divisors[loss])

    def _as_it_ran(self, loss: str | None) -> list[tuple[int, float]]:
        """The squares of the changes of the rows that make some, by their numbers."""
        if loss not in self._ran:
            found = ((number, squares(row, loss)) for number, row in enumerate(self._rows))
            self._ran[loss] = [(number, whole) for number, whole in found if whole]
        return self._ran[loss]

    def _part_of(self, number: int, loss: str | None, rounding: float) -> float:
        whole = squares(self._rows[number], loss, "rounding")
        return max(0.0, rounding) / whole if whole else 0.0

    def _passes(self, loss: str | None) -> Passes:
        if loss not in self._passes_of:
            self._passes_of[loss] = Passes(self._rows, loss)
        return self._passes_of[loss]

    def _rounding(self, number: int, loss: str | None, rounded: Rounded) -> float:
        """The squares of the changes that some readers of a row make by rounding its results.

        All round the same numbers, so that their changes cancel or add up. Where the gradients of some readers are not known these have what the
        others leave, and where none are all have the same.
        """
        values = self._rows[number].measured
        whole = squares(self._rows[number], loss, "rounding")
        if loss in self._choosing and number in self._choosing[loss].makers:  # others that read it do not choose
            return rounded.part_of(self._choosing[loss].row) * whole
        read = self._read(number, loss, rounded) if values.ran.squares or values.low.squares else None
        if read is None:  # or it hands on what others have rounded
            return rounded.part() * whole
        # An edit that changes nothing is to be seen as such, whatever the order of the sums is.
        return whole if math.isclose(read.squares, whole, rel_tol=1e-3) else max(0.0, read.squares)

    def _read(self, number: int, loss: str | None, rounded: Rounded) -> _Read | None:
        """None if the gradients of no reader are known."""
        pairs = self._reads.get((number, loss), [])
        whole = [pair.product for pair in pairs if pair.first == pair.second == ALL_READERS]
        if not whole:
            return None
        readers = {each for pair in pairs for each in (pair.first, pair.second)}
        others = rounded.part(beside=readers)
        parts = {each: self._part(each, loss, rounded) - others for each in readers} | {ALL_READERS: others}
        found = sum(
            (1 + (pair.first != pair.second)) * parts[pair.first] * parts[pair.second] * pair.product for pair in pairs
        )
        with_all = sum(
            parts[pair.first if pair.second == ALL_READERS else pair.second] * pair.product
            for pair in pairs
            if ALL_READERS in (pair.first, pair.second)
        )
        return _Read(found, with_all, whole[0])

    def _part(self, reader: int, loss: str | None, rounded: Rounded) -> float:
        """Of a reader that hands on what it reads: by the gradients of those behind it."""
        behind = rounded.parts.get(reader, 0.0)
        read = self._read(reader, loss, behind) if isinstance(behind, Rounded) else None
        if read is None or not read.squares_of_all:
            return rounded.part_of(reader)
        return math.copysign(math.sqrt(max(0.0, read.squares) / read.squares_of_all), read.with_all)

    def error(self) -> float:
        """Of all losses together, as the step ran."""
        return together(self.errors())

    def weighed(self, errors: Mapping[str, float]) -> float:
        """To choose by: what is left of the error of each loss counts alike, whatever its size is."""
        typical = together(self._now) or 1.0
        return together({name: error / (self._now[name] or typical) for name, error in errors.items()})


def together(errors: Mapping[str, float]) -> float:
    """The errors of several losses, and of outputs, as one: the root of their mean square."""
    return math.hypot(*errors.values()) / math.sqrt(len(errors)) if errors else 0.0
