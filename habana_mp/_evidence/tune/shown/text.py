"""A ``Tuned`` as ``print`` shows it: the error, the ops that moved, and the policies that ran."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from habana_mp._evidence.tune.turns import ALIKE, as_fast
from habana_mp._show.units import counted, in_unit, time, unit_of

_MOST_MOVED = 10


def text(found: Any) -> str:
    wide = sum(part.list == "fp32" for part in found.parts)
    head = f"{counted(len(found.parts), 'part')}, {wide} in float32; error {found._beside(found.error)} of {found.budget:g} after {found.runs} runs"
    return "\n".join([head, *remarks(found), "", *_lines_of_moved(found), *_table(found), "", choice(found)])


def remarks(found: Any) -> Iterator[str]:
    """On what is not in the tables."""
    if found.check_error is not None:
        above = "above the budget" if found.check_error > found.budget else "within the budget"
        yield f"error on the data of check: {found._beside(found.check_error)}, {above}"
    if not _is_float32(found, found.chosen):
        return
    near = min(_near(found), key=lambda point: point.seconds, default=found.chosen)
    if near.seconds < (1 - ALIKE) * found.chosen.seconds:
        float32, other = (time(point.seconds) for point in (found.chosen, near))
        yield (
            f"times differ too much from run to run ({time(found.noise)}) to tell whether {near.name} ({other}) is faster than float32 ({float32}): "
            "search again, or run without a policy"
        )
    else:
        low = any(point.error <= found.budget and not _is_float32(found, point) for point in found.points)
        eight = ", or try 8 bits, too (formats: float32, lower, int8)" if low and found._may_try_8_bits else ""
        yield f"float32 is {'as fast' if len(_near(found)) > 1 else 'the fastest'}: run without a policy{eight}"


def _is_float32(found: Any, point: Any) -> bool:
    return bool(point.in_float32 == len(found.parts))


def moved(found: Any) -> list[tuple[str, str, str, str]]:
    """The ops in another list than in the start, without other names of the same op: the name, the list before and the list now, and why."""
    return [each for each in found._moved() if each[3]]


def _near(found: Any) -> list[Any]:
    return [] if found.noise is None else as_fast(found.points, found.noise)


def _lines_of_moved(found: Any) -> Iterator[str]:
    ops = moved(found)
    for name, before, after, why in ops[:_MOST_MOVED]:
        yield f"{name}: {before} -> {after}; {why}"
    if len(ops) > _MOST_MOVED:
        yield f"and {len(ops) - _MOST_MOVED} more"
    yield "" if ops else f"no op moved: the lists are those of {found.start.name}\n"


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


def choice(found: Any) -> str:
    """Why it was chosen among the policies that ran."""
    if found.noise is None:
        return "chosen: within the budget, the fewest numbers in float32"
    others = ", ".join(point.name for point in _near(found) if point is not found.chosen)
    if not others:
        return "chosen: within the budget, the shortest time"
    noise = in_unit(found.noise, unit_of(found.noise))
    why = "no error" if _is_float32(found, found.chosen) else f"the fewest changes of {found.start.name}"
    return f"chosen: within the budget, and {why} among those that are as fast, as times differ by {noise} from run to run: {others}"
