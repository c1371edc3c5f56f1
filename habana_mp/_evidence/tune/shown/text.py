"""A ``Tuned`` as ``print`` shows it: the error, the ops that moved, and the policies that ran."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from habana_mp._evidence.tune.turns import as_fast
from habana_mp._show.units import counted, in_unit, unit_of

_MOST_MOVED = 10


def text(found: Any) -> str:
    """Of a ``Tuned``."""
    wide = sum(part.list == "fp32" for part in found.parts)
    head = f"{counted(len(found.parts), 'part')}, {wide} in float32; error {found._beside(found.error)} of {found.budget:g} after {found.runs} runs"
    near = [] if found.noise is None else as_fast(found.points, found.noise)
    return "\n".join([head, *_remarks(found, near), "", *_moved(found), *_table(found), "", _choice(found, near)])


def _remarks(found: Any, near: list[Any]) -> Iterator[str]:
    if found.check_error is not None:
        above = "above the budget" if found.check_error > found.budget else "within the budget"
        yield f"error on the data of check: {found._beside(found.check_error)}, {above}"
    if any(_is_float32(found, point) for point in near):
        alone = _is_float32(found, found.chosen)
        yield f"float32 is {'the fastest: run without a policy' if alone else 'as fast, within the noise of the times'}"


def _is_float32(found: Any, point: Any) -> bool:
    return bool(point.in_float32 == len(found.parts))


def _moved(found: Any) -> Iterator[str]:
    moved = [each for each in found._moved() if each[3]]  # not other names of the same op
    for name, before, after, why in moved[:_MOST_MOVED]:
        yield f"{name}: {before} -> {after}; {why}"
    if len(moved) > _MOST_MOVED:
        yield f"and {len(moved) - _MOST_MOVED} more"
    yield "" if moved else f"no op moved: the lists are those of {found.start.name}\n"


def _table(found: Any) -> list[str]:
    rows = [("policy", "error", "(predicted)", "time", "(predicted)", ""), *_rows(found)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _rows(found: Any) -> Iterator[tuple[str, ...]]:
    """Times that were taken alike, in one unit. Those of a single run beside times in turns are left out."""
    rounds = max(point.timed for point in found.points)
    unit = unit_of(min(point.seconds for point in found.points if point.timed == rounds))
    for point in found.points:
        predicted = "" if point.predicted_error is None else f"{point.predicted_error:.2g}"
        foretold = "" if point.predicted_seconds is None else in_unit(point.predicted_seconds, unit)
        seconds = in_unit(point.seconds, unit) if point.timed == rounds else ""
        mark = "chosen" if point is found.chosen else "above the budget" if point.error > found.budget else ""
        yield point.name, found._beside(point.error), predicted, seconds, foretold, mark


def _choice(found: Any, near: list[Any]) -> str:
    if found.noise is None:
        return "chosen: within the budget, the fewest numbers in float32"
    others = ", ".join(point.name for point in near if point is not found.chosen)
    if not others:
        return "chosen: within the budget, the shortest time"
    noise = in_unit(found.noise, unit_of(found.noise))
    return f"chosen: within the budget, and the fewest changes of {found.start.name} among those within {noise} of the shortest time, which is noise: {others}"
