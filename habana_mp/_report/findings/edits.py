"""Edits of a policy that the measured errors of a report speak for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from habana_mp._core import Entry
from habana_mp._report.added import grouped
from habana_mp._report.data import Report, Row
from habana_mp._report.findings.simulated import Effect, Simulation
from habana_mp._report.findings.unknown import why_no_edit
from habana_mp._report.numbers import WholeError, change_of, with_values
from habana_mp._show.module_path import common
from habana_mp._show.units import apart, counted, encodable, share

_LARGE = 0.05  # of the error, that an op makes which is worth float32
_SMALL = 0.01  # of the error, that an op would add which is worth the low dtype
_WHY_NO_EDIT = "no op makes 5 % of an error that reached a loss or projected outputs, and none in float32 would save time for 1 % of it"
# The groups of a file of edits.
_TITLES = {
    "fp32": "for accuracy",
    "lower": "for speed",
    "worse": "left out: errors of other ops cancel these now, so the error would become larger",
}
_WORTH = 0.01  # of the time of all ops: what takes less is not worth the low dtype


@dataclass(frozen=True)
class Edit:
    """One edit, as ``Policy.with_edits`` takes it (``text``), and its evidence.

    ``share`` is the op's part of the error of the loss, or of the outputs, to first order: what the edit takes away, or, of "+op:lower", what it would
    add. ``error`` is by how much the loss is off now, or the outputs in relation to their size, and ``error_after`` with the edit; None where that
    is not known. ``casts`` is how many casts the op has now, ``modules`` where most of it is made. ``more_casts`` and ``seconds`` are
    what the edit would change in all forward casts and in the time of the block, about: below zero it saves some. ``why`` says all of it.
    ``lost`` is how many numbers of the op are NaN or infinite in the low dtype and finite in float32; its edit then has no errors.

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
    why: str
    lost: int = 0
    _list: str = field(default="fp32", repr=False)  # that the edit puts the op into

    def __str__(self) -> str:
        return f"{self.text}: {self.why}"

    @property
    def _is_worse(self) -> bool:
        """Whether float32 is expected to make the error of this step larger. The share, which has no signs, is that of other steps too."""
        if self.error is None or self.error_after is None:
            return False
        return self._list == "fp32" and self.error_after > self.error


def _where(rows: list[Row], change: Callable[[Row], float]) -> str:
    """The module that makes most of the error of an op, or what the modules that make some of it have in common."""
    sizes = {row.module: change(row) for row in rows}
    largest = max(sizes, key=lambda module: sizes[module])
    most = sizes[largest] > sum(sizes.values()) / 2
    return largest if most else common(module for module, size in sizes.items() if size > 0)


def edits(report: Report, per: str = "op") -> list[Edit]:
    """The ops that lose numbers, then those whose float32 takes most of the error away, then those whose low dtype adds least for the time that
    they take.

    One at a time: what an edit does to the error of other ops is not in the figures. Casts and times are simulated on what was recorded. ``per``
    "module" gives edits of an op in some modules, those whose paths differ in numbers together: "+mul in layers.*.rotary_emb:fp32".
    """
    rows = with_values(report.rows)
    groups = dict(_by_op(rows) if per == "op" else _by_module(rows))
    simulation = Simulation(report)
    lost = dict(_of_lost(report, groups, simulation))
    others = {entry: group for entry, group in groups.items() if entry not in lost}
    return [*sorted(lost.values(), key=lambda each: -each.lost), *_of_shares(report, rows, others, simulation)]


def edits_text(report: Report, per: str = "op") -> str:
    """A file of edits for --edit. Those that would make the error larger are comments, and so is the reason why there are none."""
    found = edits(report, per)
    return _in_groups(found) if found else f"# {'; '.join(no_edit(report))}\n"


def _in_groups(found: Iterable[Edit]) -> str:
    lines: dict[str, list[str]] = {}
    for edit in found:
        kind = "worse" if edit._is_worse else edit._list
        lines.setdefault(kind, []).append(f"{'# ' if edit._is_worse else ''}{edit.text}  # {edit.why}\n")
    return "\n".join(f"# {_TITLES[kind]}\n{''.join(lines[kind])}" for kind in _TITLES if kind in lines)


def no_edit(report: Report) -> tuple[str, str]:
    """What to say, and why, where ``edits`` finds none."""
    return why_no_edit(report) or ("no edit of the lists is worth it", _WHY_NO_EDIT)


def _of_lost(report: Report, groups: dict[Entry, list[Row]], simulation: Simulation) -> Iterator[tuple[Entry, Edit]]:
    """Of ops whose results are not finite where they are so in float32: these errors reach no share."""
    for entry, group in groups.items():
        rows = [row for row in group if row.measured.ran.lost and row.policy]
        if not any(entry.modules in ("", row.where.pattern) for row in rows):
            continue  # where only a module inside of this one loses some, that has the edit
        lost = sum(row.measured.ran.lost for row in rows)
        numbers = sum(row.measured.range.numbers for row in rows)
        dtypes = sorted({dtype for row in rows for dtype in row.runs_in} - {"float32"})
        casts = sum(cast.count for row in group for cast in row.casts)
        where = _where(rows, lambda row: float(row.measured.ran.lost))
        effect = simulation.effect({(row.op, row.module) for row in group}, "float32")
        of = f" of {numbers:,}" if numbers >= lost else ""
        why = f"loses {lost:,}{of} numbers in {', '.join(dtypes) or report.low_dtype}" + (
            f", in {where}" if where else ""
        )
        why += f"; {_cost(effect, report.seconds)}"
        yield entry, Edit(f"+{entry}:fp32", group[0].op, 0.0, casts, where, *_fields(effect), None, None, why, lost)


def _of_shares(report: Report, rows: list[Row], groups: dict[Entry, list[Row]], simulation: Simulation) -> list[Edit]:
    change, change_low = change_of(rows), change_of(rows, what_if=True)
    whole = sum(map(change, rows))
    if whole <= 0:
        return []
    of = "the loss" if any(row.measured.changes for row in rows) else "the outputs"
    error = WholeError(report)
    now = error.now() if error.known else None
    time, block = report.op_seconds or 1.0, report.seconds
    keep, lower = [], []
    for entry, group in groups.items():
        op, places = group[0].op, {(row.op, row.module) for row in group}
        casts = sum(cast.count for row in group for cast in row.casts)
        made = sum(map(change, group)) / whole
        if made >= _LARGE:
            where = _where(group, change)
            effect = simulation.effect(places, "float32")
            if all(left == 1 for left in effect.left.values()):
                continue  # its results are rounded again at once
            after = error.with_left((report.rows[i], left) for i, left in effect.left.items()) if error.known else None
            off = now, after
            cancels = now is not None and after is not None and after > now
            note = " in this step, where errors of other ops cancel it" if cancels else ""
            why = f"makes {share(made, 1.0)} of the error of {of}{_off(*off, note)}" + (
                f", in {where}" if where else ""
            )
            why += f"; {_cost(effect, block)}"
            keep.append(Edit(f"+{entry}:fp32", op, made, casts, where, *_fields(effect), *off, why))
            continue
        wide = [row for row in group if row.runs_in == ["float32"] and change_low(row) and row.policy]
        added = sum(map(change_low, wide)) / whole
        seconds = sum(row.own_seconds + row.all_cast_seconds for row in wide)
        if wide and added <= _SMALL and seconds >= _WORTH * time:
            effect = simulation.effect(places, report.low_dtype or "")
            if effect.seconds >= 0 and effect.casts >= 0:
                continue  # it would gain nothing
            off = now, error.with_low(wide) if error.known else None
            why = f"{_cost(effect, block)}, {_added(added, of, *off)}"
            where = common(row.module for row in wide)
            lower.append(Edit(f"+{entry}:lower", op, added, casts, where, *_fields(effect), *off, why, _list="lower"))
    return [
        *sorted(keep, key=lambda each: (each._is_worse, -each.share)),
        *sorted(lower, key=lambda each: each.seconds),
    ]


def _by_op(rows: list[Row]) -> Iterator[tuple[Entry, list[Row]]]:
    for group in grouped(rows, lambda row: row.op):
        yield Entry(op=encodable(group[0].op)), group


def _by_module(rows: list[Row]) -> Iterator[tuple[Entry, list[Row]]]:
    """An op in the modules of one path, with what is inside of them: an edit holds there, too."""
    for entry, group in _by_op(rows):
        paths = {id(row): row.where.pattern for row in group}
        for path in sorted({*paths.values()} - {""}):
            yield entry.replaced(modules=path), [row for row in group if f"{paths[id(row)]}.".startswith(f"{path}.")]


def _off(now: float | None, after: float | None, note: str = "") -> str:
    """``(estimated: 0.017 -> 0.0004)``."""
    if now is None or after is None:  # of a file that another version has written
        return ""
    return f" (estimated: {now:.2g} -> {after:.2g}{note})"


def _added(part: float, of: str, now: float | None, after: float | None) -> str:
    """What the low dtype does to the error. Errors of a loss have signs, so it may fall."""
    if now is None or after is None:
        return f"would add {share(part, 1.0)} to the error of {of}"
    if abs(after - now) < 0.001 * now:
        return f"would leave the error of {of} at {now:.2g}"
    verb = "raise" if after > now else "reduce"
    return f"would {verb} the error of {of} ({apart(now, after)} -> {apart(after, now)})"


def _fields(effect: Effect) -> tuple[int, float]:
    return effect.casts, effect.seconds


def _cost(effect: Effect, block: float) -> str:
    """``costs about 0.4 % of the time, 12 casts more``."""
    verb = "costs" if effect.seconds > 0 else "saves"
    casts = (
        f"{counted(abs(effect.casts), 'cast')} {'more' if effect.casts > 0 else 'fewer'}"
        if effect.casts
        else "no cast more"
    )
    part = share(abs(effect.seconds), block)
    about = part.replace("<", "less than ") if part.startswith("<") else f"about {part}"
    time = f"{verb} {about} of the time" if effect.seconds else "costs no time"
    return f"{time}, {casts}"
