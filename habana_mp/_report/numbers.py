"""What a report has measured of the numbers of calls: errors, ranges, and the change of the loss that an error makes."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple, get_args

import torch

from habana_mp._report.added import added_counts
from habana_mp._report.data import Error, Read, Report, Row
from habana_mp._report.formats import FORMATS

OUTPUTS = "outputs"
_ALL = -1  # readers
_LEAST = 0.01  # of the squares of errors that cancel
_MANY_PASSES = 8  # with fewer, nearly all products are chance
_SURE = 2.5  # times what chance makes: two ops whose errors have as much in common do not have it by chance

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
    return any(row.measured.losses or row.measured.projections for row in rows)


def shares_known(rows: Iterable[Row]) -> bool:
    """Whether it is known which op makes the error: not without a backward pass, nor where the loss or its gradients are not finite."""
    rows = [*rows]
    return share(rows, rows) > 0


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
    return [*dict.fromkeys(each.loss for row in rows for each in row.measured.losses)]


def squares(row: Row, loss: str | None, which: Run = "ran") -> float:
    """Of the changes of a loss in each backward pass, or of random sums of the outputs."""
    values = row.measured
    if which in FORMATS:
        found = values.in_format(which)
        own = found.projected if found and loss is None else 0.0
        own += sum(each.squares for each in (found.losses if found else ()) if each.loss == loss)
        return own + squares(row, loss, "low") * _not_in_format(row, which)
    if loss is None:
        return {"ran": values.projected, "low": values.projected_low, "rounding": values.projected_rounding}[which]
    field = {"ran": "squares", "low": "squares_low", "rounding": "squares_rounding"}[which]
    return sum((getattr(each, field) for each in values.losses if each.loss == loss), 0.0)


def _not_in_format(row: Row, name: str) -> float:
    """Which part of the calls of a row cannot run in 8 bits."""
    found = row.measured.in_format(name)
    return 1 - min(1.0, found.calls / max(1, row.measured.calls)) if found else 1.0


def _total(rows: list[Row], loss: str | None, which: Run) -> float:
    return sum(squares(row, loss, which) for row in rows)


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


class _Weights:
    """Which part of its changes each row has, by the run in which they were measured: the root of a part of their squares."""

    def __init__(self) -> None:
        self.of: dict[Run, dict[int, float]] = {}

    def add(self, number: int, run: Run, part: float) -> None:
        if part > 0:
            self.of.setdefault(run, {})[number] = math.sqrt(part)


class _Passes:
    """What rows change a loss by in each backward pass, or random sums of the outputs, with signs: the products of each two of them, summed over passes.

    With signs at random the square of such a sum would be ``chance`` on average. A pair that is well beyond this counts, and all others
    together as far as their sum in the run is more than chance: a choice of rows by what they leave would find noise.
    """

    def __init__(self, rows: list[Row], loss: str | None) -> None:
        found = {run: [_changes(row, loss, run) for row in rows] for run in get_args(Run)}
        passes = max(len(each) for changes in found.values() for each in changes)
        used = [number for number in range(len(rows)) if any(any(changes[number]) for changes in found.values())]
        self._position = {number: position for position, number in enumerate(used)}
        self._changes: dict[Run, torch.Tensor] = {}  # rows, passes
        for run, changes in found.items():
            padded = [[*changes[number], *[0.0] * (passes - len(changes[number]))] for number in used]
            self._changes[run] = torch.tensor(padded, dtype=torch.float64).reshape(len(used), passes)
        self._products: dict[tuple[Run, Run], torch.Tensor] = {}
        self._counts = self._more_than_chance() if passes >= _MANY_PASSES else None  # of each two rows

    def _more_than_chance(self) -> torch.Tensor:
        ran, low = self._changes["ran"], self._changes["low"]
        moves = ran.any(1, keepdim=True)
        own = torch.where(moves, ran, low)
        own = own / (own.square().mean().sqrt() or 1.0)  # their fourth powers may be beyond a float
        products, chance = own @ own.T, own.square() @ own.square().T
        sure = _sure(products.square(), chance)
        sure.fill_diagonal_(0.0)
        others = ((1 - sure) * (moves & moves.T if moves.any() else True)).fill_diagonal_(0.0)
        found, by_chance = float((others * products).sum()), 2 * float((others.square() * chance).sum())
        rest = found * found / (found * found + by_chance) if found else 0.0
        return (sure + (1 - sure) * rest).fill_diagonal_(0.0)

    def together(self, weights: _Weights) -> float:
        if self._counts is None:
            return 0.0
        own = {run: torch.zeros(len(self._position), dtype=torch.float64) for run in weights.of}
        for run, of in weights.of.items():
            for number, weight in of.items():
                if number in self._position:
                    own[run][self._position[number]] = weight
        return float(sum((own[a] @ self._product(a, b) @ own[b] for a in own for b in own), torch.tensor(0.0)))

    def _product(self, a: Run, b: Run) -> torch.Tensor:
        if (b, a) in self._products:
            return self._products[b, a].T
        if (a, b) not in self._products:
            self._products[a, b] = self._changes[a] @ self._changes[b].T * self._counts
        return self._products[a, b]


def _sure(squares: torch.Tensor, chance: torch.Tensor) -> torch.Tensor:
    ratio = (squares / (chance * _SURE**2)).nan_to_num(0.0)
    return ratio.square() / (1 + ratio.square())


def _changes(row: Row, loss: str | None, run: Run) -> list[float]:
    values = row.measured
    if run in FORMATS:
        in_format = values.in_format(run)
        if in_format is None:
            return []
        if loss is None:
            return in_format.passes
        return next((each.passes for each in in_format.losses if each.loss == loss), [])
    passes = values.passes if loss is None else next((each.passes for each in values.losses if each.loss == loss), None)
    return getattr(passes, run) if passes else []


class Objective:
    """How far each loss is off, and the outputs in relation to their size, to first order: as the step ran, and as it would run.

    The root of the sum of squares over rows, and the mean over backward passes. What cancels by chance in one pass adds up in the next, so the
    products of two rows count as far as they are larger than chance makes them in so many passes (``_Passes``).
    """

    def __init__(self, report: Report) -> None:
        self._rows = report.rows
        losses = losses_of(report.rows)
        passes = {each.loss: float(each.passes) for each in report.losses or []}
        self._scales: dict[str | None, float] = {each: passes.get(each, 0.0) for each in losses}
        if report.projected_squares or not losses:
            self._scales[None] = report.projected_squares or 0.0
        self._passes_of: dict[str | None, _Passes] = {}
        self._reads: dict[tuple[int, str | None], list[Read]] = {}
        for read in report.reads or []:
            self._reads.setdefault((read.maker, read.loss), []).append(read)
        self.names = self._named(losses) | ({OUTPUTS: "the outputs"} if None in self._scales else {})
        self._now = self.errors() if self.known else {}

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

    @property
    def _losses(self) -> int:
        return len(self.names) - (OUTPUTS in self.names)

    @property
    def known(self) -> bool:
        return all(self._scales.values())

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
        found = {}
        for loss, scale in self._scales.items():
            total, weights = 0.0, _Weights()
            for number, row in enumerate(self._rows):
                which: Run = low[number].which if number in low else "ran"
                whole = squares(row, loss, which)
                if number in left:
                    rounding = self._rounding(number, loss, left[number].rounded)
                    kept = left[number].ran * whole + left[number].rounding * rounding
                    weights.add(number, "ran", left[number].ran)
                    weights.add(number, "rounding", left[number].rounding * self._part_of(number, loss, rounding))
                elif number in low:
                    part = low[number].part
                    rounding = self._rounding(number, loss, low[number].rounded)
                    kept = part * (whole - rounding) + (1 - part) * squares(row, loss)  # those that read it lose that
                    # What rounded arguments give is rounded to other numbers: its sign is not that of ``rounding``.
                    own = part * max(0.0, 1 - rounding / whole) if whole else 0.0
                    weights.add(number, which, own)
                    if which in FORMATS:
                        weights.add(number, "low", own * _not_in_format(row, which))
                    weights.add(number, "ran", 1 - part)
                else:
                    kept = whole
                    weights.add(number, "ran", 1.0)
                total += kept
            both = total + self._passes(loss).together(weights)
            # Few passes cannot tell that all of it cancels: 0 is of what is not rounded.
            mean_square = max(0.0, _LEAST * total, both) / scale
            found[OUTPUTS if loss is None else loss] = math.sqrt(mean_square)
        return found

    def _part_of(self, number: int, loss: str | None, rounding: float) -> float:
        whole = squares(self._rows[number], loss, "rounding")
        return max(0.0, rounding) / whole if whole else 0.0

    def _passes(self, loss: str | None) -> _Passes:
        if loss not in self._passes_of:
            self._passes_of[loss] = _Passes(self._rows, loss)
        return self._passes_of[loss]

    def _rounding(self, number: int, loss: str | None, rounded: Rounded) -> float:
        """The squares of the changes that some readers of a row make by rounding its results.

        All round the same numbers, so that their changes cancel or add up. Where the gradients of some readers are not known these have what the
        others leave, and where none are all have the same.
        """
        values = self._rows[number].measured
        whole = squares(self._rows[number], loss, "rounding")
        read = self._read(number, loss, rounded) if values.ran.squares or values.low.squares else None
        if read is None:  # or it hands on what others have rounded
            return rounded.part() * whole
        # An edit that changes nothing is to be seen as such, whatever the order of the sums is.
        return whole if math.isclose(read.squares, whole, rel_tol=1e-3) else max(0.0, read.squares)

    def _read(self, number: int, loss: str | None, rounded: Rounded) -> _Read | None:
        """None if the gradients of no reader are known."""
        pairs = self._reads.get((number, loss), [])
        whole = [pair.product for pair in pairs if pair.first == pair.second == _ALL]
        if not whole:
            return None
        readers = {each for pair in pairs for each in (pair.first, pair.second)}
        others = rounded.part(beside=readers)
        parts = {each: self._part(each, loss, rounded) - others for each in readers} | {_ALL: others}
        found = sum(
            (1 + (pair.first != pair.second)) * parts[pair.first] * parts[pair.second] * pair.product for pair in pairs
        )
        return _Read(found, sum(parts[pair.second] * pair.product for pair in pairs if pair.first == _ALL), whole[0])

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


def with_values(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row.values]


def why_unmeasured(rows: Iterable[Row], *, backward: bool = False) -> tuple[int, str]:
    """How many calls of some rows were not measured, and why: 0 and an empty text if all were."""
    reasons = added_counts((row.unmeasured_backward if backward else row.unmeasured) or {} for row in rows)
    return sum(reasons.values()), ", ".join(UNMEASURED.get(reason, reason) for reason in reasons)
