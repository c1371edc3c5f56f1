"""Edits of a policy that the measured errors of a report speak for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from habana_mp._core import Entry
from habana_mp._report.added import grouped
from habana_mp._report.data import Report, Row
from habana_mp._report.edits.sequence import WIDE, Sequence, Taken
from habana_mp._report.edits.simulated import Effect, Simulation
from habana_mp._report.errors.objective import together
from habana_mp._report.formats import FORMATS
from habana_mp._report.numbers import with_values
from habana_mp._report.sums import is_measurable, seconds_of_inference, seconds_of_steps
from habana_mp._show.module_path import common
from habana_mp._show.short import Short
from habana_mp._show.units import apart, counted, encodable, share


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

    ``share`` is the op's part of the error of the loss, or of the outputs, to first order; of "+op:lower", "+op:int8" and the like the part that it would have. 0 is that of an op that no gradient comes to. ``error`` is
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
    sequence = Sequence(report, simulation, rows, groups, listed)
    telling = _Telling(report, sequence)
    if names := [*formats]:
        return [telling.edit(taken) for taken in sequence.into_formats(names)]
    lost = dict(_of_lost(report, groups, listed, simulation))
    taken = sequence.into_dtypes(lost)
    return [*sorted(lost.values(), key=lambda each: -each.lost), *map(telling.edit, taken)]


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
        effect = simulation.effect(dict.fromkeys(listed[entry], WIDE))
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


class _Telling:
    """Edits in words."""

    def __init__(self, report: Report, sequence: Sequence) -> None:
        self._report, self._sequence, self._objective = report, sequence, sequence.objective

    def edit(self, taken: Taken) -> Edit:
        title, rows = taken.title, taken.rows
        errors = [each.errors for each in (self._sequence.now, taken.before, taken.outcome, taken.alone)]
        now, _, after, own = map(together, errors)
        more = taken.more
        if title in FORMATS:
            cost = _cost(more, seconds_of_inference(self._report), "a step of inference")
        else:
            cost = _cost(more, seconds_of_steps(self._report))
        if title != "fp32":
            where = common(row.module for row in rows)
            why = f"{cost}, {self._added(*errors[1:3])}"
        else:
            where = _where(rows, taken.change if taken.share else lambda row: row.measured.ran.squares)
            others = "" if taken.is_first else f" with those before it, {self._each(errors[3])} alone"
            by_choices = self._objective.flips and own**2 < (1 - 2 * taken.share) * now**2
            chosen = ", and more by what is chosen" if by_choices else ""
            makes = (
                f"makes {share(taken.share, 1.0)} of" if taken.share or by_choices else "is followed by ops that make"
            )
            why = f"{makes} the error of {self._objective.what}{chosen} (estimated: {self._change_of(*errors[1:3])}{others})"
            why += (f", in {where}" if where else "") + f"; {cost}"
        losses = [LossError(each, *(errors[i][each] for i in (0, 2, 3))) for each in errors[0]]
        return Edit(
            f"+{taken.entry}:{title}",
            rows[0].op,
            taken.share,
            taken.casts,
            where,
            more.casts,
            more.seconds,
            now,
            after,
            own,
            why,
            losses=tuple(losses) if len(losses) > 1 else (),
            _list=title,
            _entry=taken.entry,
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
    casts = (
        f"{counted(abs(effect.casts), 'cast')} {'more' if effect.casts > 0 else 'fewer'}"
        if effect.casts
        else "no cast more"
    )
    if is_measurable(effect.seconds, step):
        time = f"{'costs' if effect.seconds > 0 else 'saves'} about {share(abs(effect.seconds), step)} of {of}"
    elif -step < effect.seconds < 0:
        time = "saves less time than can be measured"
    else:
        time = f"costs no time{' that can be measured' if effect.seconds else ''}"
    return f"{time}, {casts}"
