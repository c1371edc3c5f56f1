"""Which edits are taken, one after another: each is simulated with those before it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from habana_mp._core import Entry
from habana_mp._report.data import Report, Row
from habana_mp._report.edits.simulated import Effect, Simulation
from habana_mp._report.errors.objective import Objective
from habana_mp._report.formats import FORMATS
from habana_mp._report.numbers import change_of
from habana_mp._report.sums import seconds_of_steps

WIDE = "float32"
_LARGE = 0.05  # of the error that is left, which an edit takes away that is worth it
_SMALL = 0.01  # of the error, that an op would add which is worth the low dtype
_NEARLY = 0.9  # of the best edit's gain: among these the one that costs less time is better
_NOTHING = 0.01  # of the error: what is left then needs no more edits
_MOST_TRIED = 32
_MOST_PAIRED = 8
_WORTH = 0.01  # of a step: what takes less is not worth the low dtype


class Outcome:
    """What some edits together change, and what they leave of the error of each loss."""

    def __init__(self, objective: Objective, effect: Effect | None = None) -> None:
        self._objective, self._effect = objective, effect or Effect()
        self.casts, self.seconds, self.left = self._effect.casts, self._effect.seconds, self._effect.left
        self._errors: dict[str, float] | None = None  # many outcomes are looked at for their casts alone

    @property
    def errors(self) -> dict[str, float]:
        if self._errors is None:
            self._errors = self._objective.errors(self._effect.left, self._effect.low)
        return self._errors

    @property
    def error(self) -> float:
        """What the order is by: 1 is that of now."""
        return self._objective.weighed(self.errors)

    def beyond(self, other: Outcome) -> Effect:
        """The casts and the time that it adds to those of another one."""
        return Effect(self.casts - other.casts, self.seconds - other.seconds)


class Taken(NamedTuple):
    """An edit into a list: the rows whose error it is about, what all edits before it leave, all with it, and it alone."""

    entry: Entry
    title: str
    rows: list[Row]
    casts: int  # that the op has now
    share: float  # of the error, that these rows make, or would make
    change: Callable[[Row], float]  # that of one row, in squares
    before: Outcome
    outcome: Outcome
    alone: Outcome
    is_first: bool

    @property
    def more(self) -> Effect:
        """The casts and the time that it adds to those of the edits before it."""
        return self.outcome.beyond(self.before)


class Sequence:
    """Edits one after another, each of which is simulated with those before it."""

    def __init__(
        self,
        report: Report,
        simulation: Simulation,
        rows: list[Row],
        groups: Mapping[Entry, list[Row]],
        numbers: Mapping[Entry, list[int]],
    ) -> None:
        self._simulation, self._groups, self._numbers = simulation, groups, numbers
        self.objective = Objective(report)
        self._change = {"fp32": change_of(rows), "lower": change_of(rows, "low")} | {
            name: change_of(rows, name) for name in FORMATS
        }
        self._dtype = {"fp32": WIDE, "lower": report.low_dtype or ""} | {name: name for name in FORMATS}
        self._whole = sum(map(self._change["fp32"], rows))
        self._step = seconds_of_steps(report) or 1.0
        self._unreached = {
            number
            for entry, group in groups.items()
            for number, row in zip(numbers[entry], group, strict=True)
            if row.policy and row.measured.ran.squares > 0 and not (row.measured.losses or row.measured.projections)
        }
        self._outcomes: dict[frozenset[tuple[Entry, str]], Outcome] = {}
        self._taken: frozenset[tuple[Entry, str]] = frozenset()
        self.now = self._so_far = Outcome(self.objective)

    def into_dtypes(self, before: Iterable[Entry]) -> list[Taken]:
        """``before`` are those that come first, into float32."""
        if self._whole <= 0 or not self.objective.known:
            return []
        self._so_far = self._with("fp32", *before)
        self._taken = frozenset((entry, "fp32") for entry in before)
        return [*self._wide(), *self._lower()]

    def into_formats(self, formats: Iterable[str]) -> list[Taken]:
        """One at most for an op: these add error, so each has the list that adds less for the time that it saves."""
        if self._whole <= 0 or not self.objective.known:
            return []
        found: dict[Entry, tuple[float, str]] = {}
        for entry, name in itertools.product(self._groups, formats):
            measured = [row.measured.in_format(name) for row in self._groups[entry]]
            outcome = self._with(name, entry)
            if outcome.seconds < 0 and any(measured) and not any(each.error.lost for each in measured if each):
                price = (outcome.error**2 - self.now.error**2) / -outcome.seconds
                found[entry] = min((price, name), found.get(entry, (math.inf, name)))
        return [
            self._take(entry, name, self._groups[entry])
            for entry, (_, name) in sorted(found.items(), key=lambda each: each[1])
            if entry in self._new()
        ]

    def _with(self, title: str, *entries: Entry, alone: bool = False) -> Outcome:
        """Of these edits with those so far; each is simulated once."""
        taken = (frozenset() if alone else self._taken) | {(entry, title) for entry in entries}
        if taken not in self._outcomes:
            listed = {number: self._dtype[to] for entry, to in taken for number in self._numbers[entry]}
            self._outcomes[taken] = Outcome(self.objective, self._simulation.effect(dict(sorted(listed.items()))))
        return self._outcomes[taken]

    def _gain(self, outcome: Outcome) -> float:
        """What it takes away of the error that is left."""
        return self._so_far.error - outcome.error

    def _worth(self, outcome: Outcome) -> float:
        """The same, weighed against the time that it adds to a step."""
        return self._gain(outcome) / (1 + max(0.0, outcome.beyond(self._so_far).seconds / self._step))

    def _share(self, rows: Iterable[Row], title: str = "fp32") -> float:
        return sum(map(self._change[title], rows)) / self._whole

    def _new(self) -> list[Entry]:
        """Those that no edit so far has anything of: an op is advised once."""
        listed = {number for entry, _ in self._taken for number in self._numbers[entry]}
        return [entry for entry in self._groups if listed.isdisjoint(self._numbers[entry])]

    def _decides(self, entry: Entry) -> bool:
        """Whether its errors change what other ops choose."""
        losses = [each for row in self._groups[entry] for each in row.measured.losses]
        return bool(self.objective.flips) and any(each.choice and each.squares for each in losses)

    def _leads(self, entry: Entry) -> bool:
        """Whether it rounds numbers that no gradient comes to, such as those of positions, and takes all other ops that do into float32: one op behind
        them has all of their error.
        """
        if self._unreached.isdisjoint(self._numbers[entry]):
            return False
        left = self._with("fp32", entry).left
        return all(number in left and not left[number].ran for number in self._unreached)

    def _wide(self) -> Iterator[Taken]:
        shares = {entry: self._share(self._groups[entry]) for entry in self._new()}
        # Each next one is tried with all that are left, so there may not be too many.
        largest = sorted(
            (entry for entry, part in shares.items() if part > 0 or self._decides(entry) or self._leads(entry)),
            key=lambda entry: -max(self._worth(self._with("fp32", entry)), _LARGE * shares[entry]),
        )
        waiting = largest[:_MOST_TRIED]
        while waiting and self._so_far.error > _NOTHING * self.now.error:
            best = self._best([(entry,) for entry in waiting])
            if not best:  # alone, the results of each are rounded by another
                most = sorted(waiting, key=lambda entry: -shares[entry])[:_MOST_PAIRED]
                best = self._best([*itertools.combinations(most, 2)])
            if not best:
                return
            for entry in best:
                waiting.remove(entry)
                yield self._take(entry, "fp32", self._groups[entry])

    def _best(self, choices: Iterable[tuple[Entry, ...]]) -> tuple[Entry, ...]:
        """Those to take together; none where no choice is worth it."""
        outcomes = {entries: self._with("fp32", *entries) for entries in choices}
        gains = {entries: self._gain(outcome) for entries, outcome in outcomes.items()}
        # The time of one call may be off by anything: it decides among those that help nearly alike.
        enough = max(_LARGE * self._so_far.error, _NEARLY * max(gains.values(), default=0.0))
        worthy = [entries for entries, gain in gains.items() if gain >= enough]
        return max(worthy, key=lambda entries: self._worth(outcomes[entries]), default=())

    def _lower(self) -> Iterator[Taken]:
        found = []
        for entry in self._new():
            rows = [row for row in self._groups[entry] if row.runs_in == [WIDE] and row.policy]
            wide = [row for row in rows if row.decision != "no kernel"]  # those cannot run low here
            wide = [row for row in wide if self._change["lower"](row)]
            seconds = sum(row.own_seconds + row.all_cast_seconds for row in wide)
            if not wide or self._share(wide, "lower") > _SMALL or seconds < _WORTH * self._step:
                continue
            alone = self._with("lower", entry, alone=True)
            if alone.seconds < 0 or alone.casts < 0:  # else it would gain nothing
                found.append((alone.seconds, entry, wide))
        for _, entry, wide in sorted(found, key=lambda each: each[0]):
            # What helps alone may cost time behind the edits before it, and bring their error back.
            outcome = self._with("lower", entry)
            more = outcome.beyond(self._so_far)
            helps = (more.seconds < 0 or more.casts < 0) and outcome.error <= self._so_far.error * (1 + _SMALL)
            if entry in self._new() and helps:
                yield self._take(entry, "lower", wide)

    def _take(self, entry: Entry, title: str, rows: list[Row]) -> Taken:
        share, change = self._share(rows, title), self._change[title]
        outcome, alone = self._with(title, entry), self._with(title, entry, alone=True)
        casts = sum(cast.count for row in self._groups[entry] for cast in row.casts)
        taken = Taken(entry, title, rows, casts, share, change, self._so_far, outcome, alone, is_first=not self._taken)
        self._so_far, self._taken = outcome, self._taken | {(entry, title)}
        return taken
