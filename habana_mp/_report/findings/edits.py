"""Edits of a policy that the measured errors of a report speak for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from habana_mp._core import Entry
from habana_mp._report.added import grouped
from habana_mp._report.data import Report, Row
from habana_mp._report.errors.objective import Objective, together
from habana_mp._report.findings.simulated import Effect, Simulation
from habana_mp._report.findings.unknown import why_no_edit
from habana_mp._report.formats import FORMATS
from habana_mp._report.numbers import change_of, with_values
from habana_mp._report.sums import is_measurable, seconds_of_inference, seconds_of_steps
from habana_mp._show.module_path import common
from habana_mp._show.short import Short
from habana_mp._show.units import apart, counted, encodable, share

_WIDE = "float32"
_LARGE = 0.05  # of the error that is left, which an edit takes away that is worth it
_SMALL = 0.01  # of the error, that an op would add which is worth the low dtype
_NEARLY = 0.9  # of the best edit's gain: among these the one that costs less time is better
_NOTHING = 0.01  # of the error: what is left then needs no more edits
_MOST_TRIED = 32
_MOST_PAIRED = 8
_WHY_NO_EDIT = "no op makes 5 % of the error of a loss or of projected outputs, and none saves time in the low dtype for less than 1 % of it"
_WORTH = 0.01  # of a step: what takes less is not worth the low dtype
_WORTH_IN_FORMAT = 0.1  # of the op's own time: 8 bits that save less may as well take more


@dataclass(frozen=True)
class LossError:
    """The errors of one ``loss``, the line that called backward, as those of an ``Edit``.

    Example:
        >>> with hmp.autocast("cpu", policy="hmp"), hmp.report(values=True) as r:
        ...     model(x).float().mean().backward()
        ...     model(x).float().square().mean().backward()
        >>> for each in r.edits()[0].losses:
        ...     print(each.loss, each.error, each.error_after)
    """

    loss: str
    error: float
    error_after: float
    alone: float


@dataclass(frozen=True, repr=False)
class Edit(Short):
    """One edit, as ``Policy.with_edits`` takes it (``text``), and its evidence.

    ``share`` is the op's part of the error of the loss, or of the outputs, to first order; of "+op:lower", "+op:int8" and the like the part that it would have. ``error`` is
    by how much the loss is off now, or the outputs in relation to their size, ``error_after`` with this edit and all before it, and ``alone``
    with this one alone: roots of sums of squares, so what cancels by chance in one step counts. ``casts`` is how many casts the op has now,
    ``modules`` where most of it is made. ``more_casts`` and ``seconds`` are what the edit would change in all forward casts and in the time of
    the block, about: below zero it saves some. ``why`` says all of it. ``lost`` is how many numbers of the op are NaN or infinite in the low
    dtype and finite in float32; its edit then has no errors. ``losses`` has the errors of each loss, where there are several: then ``error`` and
    the like are the roots of the mean squares of these.

    Example:
        >>> policy = hmp.convert()
        >>> with hmp.report(values=True) as r:
        ...     model(x).sum().backward()
        >>> for edit in r.edits():
        ...     print(edit)
    """

    text: str
    op: str
    share: float
    casts: int
    modules: str
    more_casts: int
    seconds: float
    error: float | None
    error_after: float | None
    alone: float | None
    why: str
    lost: int = 0
    losses: tuple[LossError, ...] = ()
    _list: str = field(default="fp32", repr=False)  # that the edit puts the op into
    _entry: Entry | None = field(default=None, repr=False)  # the op, without a list

    def __str__(self) -> str:
        return f"{self.text}: {self.why}"

    def _line(self) -> str:
        if self.error is None or self.error_after is None:
            return self.text
        return f"{self.text}, error {self.error:.2g} -> {self.error_after:.2g}"


def _where(rows: list[Row], change: Callable[[Row], float]) -> str:
    """The module that makes most of the error of an op, or what the modules that make some of it have in common."""
    sizes = {group[0].module: sum(map(change, group)) for group in grouped(rows, lambda row: row.module)}
    largest = max(sizes, key=lambda module: sizes[module])
    most = sizes[largest] > sum(sizes.values()) / 2
    return largest if most else common(module for module, size in sizes.items() if size > 0)


def edits(report: Report, per: str = "op", formats: Iterable[str] = ()) -> list[Edit]:
    """The ops that lose numbers, then those whose float32 leaves the least error together with the ones before it, weighed against its time, then
    those whose low dtype adds least for the time that they take.

    Casts, times and errors are simulated on what was recorded. ``per`` "module" gives edits of an op in some modules, those whose paths differ
    in numbers together: "+mul in layers.*.rotary_emb:fp32". With ``formats``, those into these lists of ops in 8 bits instead, from the policy as it ran:
    first the ones that add least error for the time that they save.
    """
    rows = with_values(report.rows)
    # With the calls that were not measured, or had nothing to measure: an edit moves them, too.
    every = _by_op(report.rows) if per == "op" else _by_module(report.rows)
    groups = {entry: group for entry, group in every if with_values(group)}
    simulation = Simulation(report)
    numbers = {id(row): number for number, row in enumerate(report.rows)}
    listed = {entry: [numbers[id(row)] for row in group] for entry, group in groups.items()}
    sequence = _Sequence(report, simulation, rows, groups, listed)
    if names := [*formats]:
        return sequence.in_formats(names)
    lost = dict(_of_lost(report, groups, listed, simulation))
    return [*sorted(lost.values(), key=lambda each: -each.lost), *sequence.edits(lost)]


def no_edit(report: Report) -> tuple[str, str]:
    """What to say, and why, where ``edits`` finds none."""
    return why_no_edit(report) or ("no edit of the lists is worth it", _WHY_NO_EDIT)


def _of_lost(
    report: Report, groups: Mapping[Entry, list[Row]], listed: Mapping[Entry, list[int]], simulation: Simulation
) -> Iterator[tuple[Entry, Edit]]:
    """Of ops whose results are not finite where they are so in float32: these errors reach no share."""
    for entry, group in groups.items():
        rows = [row for row in group if row.measured.ran.lost and row.policy]
        if not any(entry.modules in ("", row.where.pattern) for row in rows):
            continue  # where only a module inside of this one loses some, that has the edit
        lost = sum(row.measured.ran.lost for row in rows)
        measured = sum(row.measured.range.numbers for row in rows)
        dtypes = sorted({dtype for row in rows for dtype in row.runs_in} - {"float32"})
        casts = sum(cast.count for row in group for cast in row.casts)
        where = _where(rows, lambda row: float(row.measured.ran.lost))
        effect = simulation.effect(dict.fromkeys(listed[entry], _WIDE))
        of = f" of {measured:,}" if measured >= lost else ""
        why = f"loses {lost:,}{of} numbers in {', '.join(dtypes) or report.low_dtype}" + (
            f", in {where}" if where else ""
        )
        why += f"; {_cost(effect, seconds_of_steps(report))}"
        yield (
            entry,
            Edit(
                f"+{entry}:fp32",
                group[0].op,
                0.0,
                casts,
                where,
                effect.casts,
                effect.seconds,
                None,
                None,
                None,
                why,
                lost,
            ),
        )


class _Outcome:
    """What some edits together change, and what they leave of the error of each loss."""

    def __init__(self, objective: Objective, effect: Effect | None = None) -> None:
        self._objective, self._effect = objective, effect or Effect()
        self.casts, self.seconds = self._effect.casts, self._effect.seconds
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


class _Sequence:
    """Edits one after another, each of which is simulated with those before it."""

    def __init__(
        self,
        report: Report,
        simulation: Simulation,
        rows: list[Row],
        groups: Mapping[Entry, list[Row]],
        numbers: Mapping[Entry, list[int]],
    ) -> None:
        self._report, self._simulation, self._groups, self._numbers = report, simulation, groups, numbers
        self._objective = Objective(report)
        self._change = {"fp32": change_of(rows), "lower": change_of(rows, "low")} | {
            name: change_of(rows, name) for name in FORMATS
        }
        self._dtype = {"fp32": _WIDE, "lower": report.low_dtype or ""} | {name: name for name in FORMATS}
        self._whole = sum(map(self._change["fp32"], rows))
        self._step, self._of = seconds_of_steps(report) or 1.0, "a step"
        self._outcomes: dict[frozenset[tuple[Entry, str]], _Outcome] = {}
        self._taken: frozenset[tuple[Entry, str]] = frozenset()
        self._now = self._so_far = _Outcome(self._objective)

    def edits(self, before: Iterable[Entry]) -> list[Edit]:
        """``before`` are those that come first, into float32."""
        if self._whole <= 0 or not self._objective.known:
            return []
        self._so_far = self._with("fp32", *before)
        self._taken = frozenset((entry, "fp32") for entry in before)
        return [*self._wide(), *self._lower()]

    def in_formats(self, formats: Iterable[str]) -> list[Edit]:
        """One at most for an op: these add error, so each has the list that adds less for the time that it saves."""
        if self._whole <= 0 or not self._objective.known:
            return []
        self._step, self._of = seconds_of_inference(self._report) or 1.0, "a step of inference"
        found: dict[Entry, tuple[float, str]] = {}
        for entry, name in itertools.product(self._groups, formats):
            measured = [row.measured.in_format(name) for row in self._groups[entry]]
            outcome = self._with(name, entry)
            if outcome.seconds < 0 and any(measured) and not any(each.error.lost for each in measured if each):
                price = (outcome.error**2 - self._now.error**2) / -outcome.seconds
                found[entry] = min((price, name), found.get(entry, (math.inf, name)))
        return [
            self._edit(entry, name, self._groups[entry])
            for entry, (_, name) in sorted(found.items(), key=lambda each: each[1])
            if entry in self._new()
        ]

    def _with(self, title: str, *entries: Entry, alone: bool = False) -> _Outcome:
        """Of these edits with those so far; each is simulated once."""
        taken = (frozenset() if alone else self._taken) | {(entry, title) for entry in entries}
        if taken not in self._outcomes:
            listed = {number: self._dtype[to] for entry, to in taken for number in self._numbers[entry]}
            self._outcomes[taken] = _Outcome(self._objective, self._simulation.effect(dict(sorted(listed.items()))))
        return self._outcomes[taken]

    def _more(self, outcome: _Outcome) -> Effect:
        """The casts and the time that it adds to those of the edits so far."""
        return Effect(outcome.casts - self._so_far.casts, outcome.seconds - self._so_far.seconds)

    def _gain(self, outcome: _Outcome) -> float:
        """What it takes away of the error that is left."""
        return self._so_far.error - outcome.error

    def _worth(self, outcome: _Outcome) -> float:
        """The same, weighed against the time that it adds to a step."""
        return self._gain(outcome) / (1 + max(0.0, self._more(outcome).seconds / self._step))

    def _share(self, rows: Iterable[Row], title: str = "fp32") -> float:
        return sum(map(self._change[title], rows)) / self._whole

    def _new(self) -> list[Entry]:
        """Those that no edit so far has anything of: an op is advised once."""
        listed = {number for entry, _ in self._taken for number in self._numbers[entry]}
        return [entry for entry in self._groups if listed.isdisjoint(self._numbers[entry])]

    def _decides(self, entry: Entry) -> bool:
        """Whether its errors change what other ops choose."""
        losses = [each for row in self._groups[entry] for each in row.measured.losses]
        return bool(self._objective.flips) and any(each.choice and each.squares for each in losses)

    def _wide(self) -> Iterator[Edit]:
        shares = {entry: self._share(self._groups[entry]) for entry in self._new()}
        # Each next one is tried with all that are left, so there may not be too many.
        largest = sorted(
            (entry for entry, part in shares.items() if part > 0 or self._decides(entry)),
            key=lambda entry: -max(self._worth(self._with("fp32", entry)), _LARGE * shares[entry]),
        )
        waiting = largest[:_MOST_TRIED]
        while waiting and self._so_far.error > _NOTHING * self._now.error:
            best = self._best([(entry,) for entry in waiting])
            if not best:  # alone, the results of each are rounded by another
                most = sorted(waiting, key=lambda entry: -shares[entry])[:_MOST_PAIRED]
                best = self._best([*itertools.combinations(most, 2)])
            if not best:
                return
            for entry in best:
                waiting.remove(entry)
                yield self._edit(entry, "fp32", self._groups[entry])

    def _best(self, choices: Iterable[tuple[Entry, ...]]) -> tuple[Entry, ...]:
        """Those to take together; none where no choice is worth it."""
        outcomes = {entries: self._with("fp32", *entries) for entries in choices}
        gains = {entries: self._gain(outcome) for entries, outcome in outcomes.items()}
        # The time of one call may be off by anything: it decides among those that help nearly alike.
        enough = max(_LARGE * self._so_far.error, _NEARLY * max(gains.values(), default=0.0))
        worthy = [entries for entries, gain in gains.items() if gain >= enough]
        return max(worthy, key=lambda entries: self._worth(outcomes[entries]), default=())

    def _lower(self) -> Iterator[Edit]:
        found = []
        for entry in self._new():
            rows = [row for row in self._groups[entry] if row.runs_in == [_WIDE] and row.policy]
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
            more = self._more(outcome)
            helps = (more.seconds < 0 or more.casts < 0) and outcome.error <= self._so_far.error * (1 + _SMALL)
            if entry in self._new() and helps:
                yield self._edit(entry, "lower", wide)

    def _edit(self, entry: Entry, title: str, rows: list[Row]) -> Edit:
        """Take the edit; ``rows`` are those whose error it is about."""
        outcome, alone = self._with(title, entry), self._with(title, entry, alone=True)
        more = self._more(outcome)
        errors = [each.errors for each in (self._now, self._so_far, outcome, alone)]
        now, _, after, own = map(together, errors)
        first = not self._taken
        self._so_far, self._taken = outcome, self._taken | {(entry, title)}
        made, what, cost = self._share(rows, title), self._objective.what, _cost(more, self._step, self._of)
        if title != "fp32":
            where = common(row.module for row in rows)
            why = f"{cost}, {self._added(*errors[1:3])}"
        else:
            where = _where(rows, self._change[title])
            others = "" if first else f" with those before it, {self._each(errors[3])} alone"
            chosen = (
                ", and more by what is chosen" if self._objective.flips and own**2 < (1 - 2 * made) * now**2 else ""
            )
            why = f"makes {share(made, 1.0)} of the error of {what}{chosen} (estimated: {self._change_of(*errors[1:3])}{others})"
            why += (f", in {where}" if where else "") + f"; {cost}"
        return Edit(
            f"+{entry}:{title}",
            rows[0].op,
            made,
            sum(cast.count for row in self._groups[entry] for cast in row.casts),
            where,
            more.casts,
            more.seconds,
            now,
            after,
            own,
            why,
            losses=tuple(LossError(each, *(errors[i][each] for i in (0, 2, 3))) for each in errors[0])
            if len(errors[0]) > 1
            else (),
            _list=title,
            _entry=entry,
        )

    def _each(self, errors: Mapping[str, float]) -> str:
        names = self._objective.names
        return ", ".join(
            (f"{names[each]} " if len(names) > 1 else "") + f"{error:.2g}" for each, error in errors.items()
        )

    def _change_of(self, before: Mapping[str, float], after: Mapping[str, float]) -> str:
        """``0.002 -> 0.0004``, of several losses each with its line."""
        names = self._objective.names
        return ", ".join(
            (f"{names[each]} " if len(names) > 1 else "")
            + f"{apart(error, after[each])} -> {apart(after[each], error)}"
            for each, error in before.items()
        )

    def _added(self, before: Mapping[str, float], after: Mapping[str, float]) -> str:
        """What the low dtype does to the error."""
        now, then = together(before), together(after)
        if abs(then - now) < 0.001 * now:
            return f"would leave the error of {self._objective.what} at {now:.2g}"
        if abs(then - now) <= (off_by := self._objective.off_by()) * now:
            return (
                f"would leave the error of {self._objective.what} about as it is ({self._change_of(before, after)}, "
                f"both off by {share(off_by, 1.0)} or so)"
            )
        verb = "raise" if then > now else "reduce"
        return f"would {verb} the error of {self._objective.what} ({self._change_of(before, after)})"


def _by_op(rows: list[Row]) -> Iterator[tuple[Entry, list[Row]]]:
    for group in grouped(rows, lambda row: row.op):
        yield Entry(op=encodable(group[0].op)), group


def _by_module(rows: list[Row]) -> Iterator[tuple[Entry, list[Row]]]:
    """An op in the modules of one path, with what is inside of them: an edit holds there, too. Where no inner module calls the op, all of it."""
    for entry, group in _by_op(rows):
        paths = {id(row): row.where.pattern for row in group}
        if not any(paths.values()):
            yield entry, group
        for path in sorted({*paths.values()} - {""}):
            yield entry.replaced(modules=path), [row for row in group if f"{paths[id(row)]}.".startswith(f"{path}.")]


def _cost(effect: Effect, step: float, of: str = "a step") -> str:
    """``costs about 4 % of a step, 12 casts more``."""
    verb = "costs" if effect.seconds > 0 else "saves"
    casts = (
        f"{counted(abs(effect.casts), 'cast')} {'more' if effect.casts > 0 else 'fewer'}"
        if effect.casts
        else "no cast more"
    )
    if not is_measurable(effect.seconds, step):
        return f"costs no time{' that can be measured' if effect.seconds else ''}, {casts}"
    return f"{verb} about {share(abs(effect.seconds), step)} of {of}, {casts}"
