"""Edits of a policy that the measured errors of a report speak for. Takes the dict of ``CastReport.to_dict``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from habana_mp._report.findings.groups import grouped, path_with_stars, pattern
from habana_mp._report.findings.simulated import Effect, Simulation
from habana_mp._report.numbers import WholeError, change_of, with_values
from habana_mp._report.sums import cast_seconds, own_seconds
from habana_mp._show.units import counted, share

_LARGE = 0.05  # of the error, that an op makes which is worth float32
_SMALL = 0.01  # of the error, that an op would add which is worth the low dtype
WHY_NO_EDIT = "no op makes 5 % of an error that reached a loss or projected outputs, and none in float32 would save time for 1 % of it"
_WORTH = 0.01  # of the time of all ops: what takes less is not worth the low dtype


@dataclass(frozen=True)
class Edit:
    """One edit, as ``Policy.with_edits`` takes it (``text``), and its evidence.

    ``share`` is the op's part of the error of the loss, or of the outputs, to first order: what the edit takes away, or, of "+op:lower", what it would
    add. ``error`` is by how much the loss is off now, or the outputs in relation to their size, and ``error_after`` with the edit; None where that
    is not known. ``casts`` is how many casts the op has now, ``modules`` where most of it is made. ``more_casts`` and ``seconds`` are
    what the edit would change in all forward casts and in the time of the block, about: below zero it saves some. ``why`` says all of it.
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

    def __str__(self) -> str:
        return f"{self.text}: {self.why}"


def _where(rows: list[dict[str, Any]], change: Callable[[dict[str, Any]], float]) -> str:
    """The module that makes most of the error of an op, or what the modules that make some of it have in common."""
    sizes = {row["module"]: change(row) for row in rows}
    largest = max(sizes, key=lambda module: sizes[module])
    most = sizes[largest] > sum(sizes.values()) / 2
    return largest if most else pattern(module for module, size in sizes.items() if size > 0)


def edits(report: dict[str, Any], per: str = "op") -> list[Edit]:
    """The ops whose float32 takes most of the error away, then those whose low dtype adds least for the time that they take.

    One at a time: what an edit does to the error of other ops is not in the figures. Casts and times are simulated on what was recorded. ``per``
    "module" gives edits of an op in some modules, those whose paths differ in numbers together: "+mul in layers.*.rotary_emb:fp32".
    """
    rows = list(with_values(report["rows"]))
    change, change_low = change_of(rows), change_of(rows, what_if=True)
    whole = sum(map(change, rows))
    if whole <= 0:
        return []
    of = "the loss" if any(row["values"]["changes"] for row in rows) else "the outputs"
    simulation, error = Simulation(report), WholeError(report)
    now = error.now() if error.known else None
    time, block = report["op_seconds"] or 1.0, report["seconds"]
    keep, lower = [], []
    for name, group in _by_op(rows) if per == "op" else _by_module(rows):
        op, places = group[0]["op"], {(row["op"], row["module"]) for row in group}
        casts = sum(cast["count"] for row in group for cast in row["casts"])
        made = sum(map(change, group)) / whole
        if made >= _LARGE:
            where = _where(group, change)
            effect = simulation.effect(places, "float32")
            if all(left == 1 for left in effect.left.values()):
                continue  # its results are rounded again at once
            after = (
                error.with_left((report["rows"][i], left) for i, left in effect.left.items()) if error.known else None
            )
            off = now, after
            cancels = now is not None and after is not None and after > now
            note = ", where errors of other ops cancel it now" if cancels else ""
            why = f"makes {share(made, 1.0)} of the error of {of}{_off(*off, note)}" + (
                f", in {where}" if where else ""
            )
            why += f"; {_cost(effect, block)}"
            keep.append(Edit(f"+{name}:fp32", op, made, casts, where, *_fields(effect), *off, why))
            continue
        wide = [row for row in group if row["runs_in"] == ["float32"] and change_low(row) and row["policy"]]
        added = sum(map(change_low, wide)) / whole
        seconds = sum(own_seconds(row) + cast_seconds(row) for row in wide)
        if wide and added <= _SMALL and seconds >= _WORTH * time:
            effect = simulation.effect(places, report["low_dtype"])
            if effect.seconds >= 0 and effect.casts >= 0:
                continue  # it would gain nothing
            off = now, error.with_low(wide) if error.known else None
            why = f"{_cost(effect, block)}, would add {share(added, 1.0)} to the error of {of}{_off(*off)}"
            where = pattern(row["module"] for row in wide)
            lower.append(Edit(f"+{name}:lower", op, added, casts, where, *_fields(effect), *off, why))
    return [*sorted(keep, key=lambda each: -each.share), *sorted(lower, key=lambda each: each.seconds)]


def _by_op(rows: list[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for group in grouped(rows, lambda row: row["op"]):
        yield group[0]["op"], group


def _by_module(rows: list[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """An op in the modules of one path, with what is inside of them: an edit holds there, too."""
    for op, group in _by_op(rows):
        paths = {id(row): path_with_stars(row["module"]) for row in group}
        for path in sorted({*paths.values()} - {""}):
            yield f"{op} in {path}", [row for row in group if f"{paths[id(row)]}.".startswith(f"{path}.")]


def _off(now: float | None, after: float | None, note: str = "") -> str:
    """``(0.017 -> 0.0004)``."""
    if now is None or after is None:  # of a file that another version has written
        return ""
    return f" ({now:.2g} -> {after:.2g}{note})"


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
