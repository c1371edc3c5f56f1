"""The figures of a report for each op and each precision, summed from its rows. The page and the table of the terminal show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import habana_mp._core as _core
from habana_mp._report.added import added_counts, grouped
from habana_mp._report.data import CompiledGraph, Report, Row
from habana_mp._report.numbers import why_unmeasured

# What the time of an op is counted as, in the order in which the page draws them.
_WIDE = tuple(name for name in _core.ELIGIBLE_DTYPES if name not in _core.LOW_DTYPES)
PRECISIONS = (*_core.LOW_DTYPES, *_WIDE, "mixed", "other", "cast")


@dataclass(frozen=True)
class OpSum:
    """All rows of one op; ``seconds`` is its time without its casts."""

    op: str
    decisions: list[str]
    rules: list[str]
    calls: int
    seconds: float
    cast_seconds: float
    casts: Counter[tuple[str, str]]
    cached: int
    backward: int


def by_op(rows: Iterable[Row]) -> list[OpSum]:
    """The ops of these rows, those that spend most time in casts first, then those that run longest."""
    found = [_op_sum(group) for group in grouped(rows, lambda row: row.op)]
    return sorted(found, key=lambda each: (-each.cast_seconds, -each.seconds, each.op))


def _op_sum(rows: list[Row]) -> OpSum:
    casts = [cast for row in rows for cast in row.casts]
    by_dtypes: Counter[tuple[str, str]] = Counter()
    for cast in casts:
        by_dtypes[cast.from_, cast.to] += cast.count
    return OpSum(
        op=rows[0].op,
        decisions=[*dict.fromkeys(row.decision for row in rows)],
        rules=[*dict.fromkeys(row.rule for row in rows if row.rule)],
        calls=sum(row.calls for row in rows),
        seconds=sum(row.own_seconds for row in rows),
        cast_seconds=sum(row.all_cast_seconds for row in rows),
        casts=by_dtypes,
        cached=sum(cast.cached for cast in casts),
        backward=sum(cast.backward.count for cast in casts),
    )


def unlisted(report: Report) -> list[OpSum]:
    """The ops that no list names and nothing decides, those that run longest first."""
    found = by_op(row for row in report.rows if row.decision == "unlisted")
    return sorted(found, key=lambda each: (-each.seconds, each.op))


@dataclass(frozen=True)
class MissedOp:
    """All calls of one op that ran past the conversion."""

    op: str
    rule: str
    source: str
    calls: int
    modules: list[str]
    held_by: list[str]


def missed(report: Report) -> list[MissedOp]:
    """The missed calls of the report, one for each op, those that were called most first."""
    found = [
        MissedOp(
            op=rows[0].op,
            rule=rows[0].rule,
            source=rows[0].source,
            calls=sum(row.calls for row in rows),
            modules=[*dict.fromkeys(row.module for row in rows if row.module)],
            held_by=[*dict.fromkeys(holder for row in rows for holder in row.held_by)],
        )
        for rows in grouped(report.missed, lambda row: row.op)
    ]
    return sorted(found, key=lambda each: -each.calls)


class Unmeasured(NamedTuple):
    """Calls of an op, or ops of its backward pass, whose error is not measured."""

    op: str
    backward: bool
    calls: int
    why: str


def unmeasured(report: Report) -> list[Unmeasured]:
    of_ops = sorted(grouped(report.rows, lambda row: row.op), key=lambda rows: rows[0].op)
    found = [
        Unmeasured(rows[0].op, backward, *why_unmeasured(rows, backward=backward))
        for rows in of_ops
        for backward in (False, True)
    ]
    return sorted((each for each in found if each.calls), key=lambda each: -each.calls)


def cast_ops(graph: CompiledGraph) -> list[str]:
    """What each run of a compiled graph casts for, and how many casts each op has."""
    by_op = Counter[tuple[str, bool]]()
    for cast in graph.casts:
        by_op[cast.op, cast.backward] += cast.count
    return [
        f"{op or 'result'}{' in backward' if backward else ''} {count:,}"
        for (op, backward), count in by_op.most_common()
    ]


def split(report: Report) -> dict[str, float]:
    """Where the time of the block went: forward passes of modules, what ran outside of them (a loss), backward passes, steps of optimizers, and
    what was no op (Python, data).
    """
    parts = {
        "model": sum(row.seconds for row in report.rows if row.module),
        "loss": max(0.0, sum(row.seconds for row in report.rows if not row.module) - report.optimizer_seconds),
        "backward": report.backward_seconds,
        "optimizer": report.optimizer_seconds,
    }
    return {**parts, "rest": max(0.0, report.seconds - sum(parts.values()))}


_NOISE = 0.02  # of a step: times of one step differ by more


def is_measurable(seconds: float, step: float) -> bool:
    """Whether times of calls can tell such a change of the time of a step: it is not too small, and no step saves all of its time."""
    return 0 < _NOISE * step <= abs(seconds) and seconds > -step


def seconds_of_steps(report: Report) -> float:
    """What the share of an edit is of: the marked steps, else all that ran in ops. Imports and the reading of data are in neither."""
    return sum(report.steps or []) or report.op_seconds + report.backward_seconds


def seconds_of_inference(report: Report) -> float:
    """The same without backward passes and optimizers, and with the weights cast before, of those ops that were measured in 8 bits."""
    step = seconds_of_steps(report) - report.backward_seconds - report.optimizer_seconds
    prepared = [
        (row, each.lower_seconds) for row in report.rows for each in row.measured.formats[:1] if each.lower_seconds
    ]
    ran = sum(row.own_seconds + row.all_cast_seconds for row, _ in prepared)
    return max(0.0, step - ran) + sum(seconds for _, seconds in prepared)


def with_backward(report: Report) -> float:
    """What a call takes together with its backward pass, over what it takes alone. Steps of optimizers have no backward pass."""
    forward = report.op_seconds - report.optimizer_seconds
    return 1 + report.backward_seconds / forward if forward > 0 else 1.0


def made_bytes(report: Report) -> dict[str, int]:
    """Memory of the results of ops by dtype, the largest first."""
    return dict(Counter(added_counts(row.made_bytes for row in report.rows)).most_common())


def other_seconds(report: Report) -> tuple[float, float]:
    """Time of the ops that ran in a low dtype, and of the same in float32, where that was measured."""
    low = [row.measured for row in report.rows if precision(row) in _core.LOW_DTYPES]
    return sum(each.ran_seconds for each in low), sum(each.other_seconds for each in low)


def precision(row: Row) -> str:
    """What the time of a row outside of its casts counts as: a dtype, "mixed" where it ran in several, or "other"."""
    if len(row.runs_in) > 1:
        return "mixed"
    return row.runs_in[0] if row.runs_in and row.runs_in[0] in PRECISIONS else "other"


def seconds_by_precision(report: Report) -> dict[str, float]:
    """The time of all ops, by what it was spent in; what took none is left out."""
    found = dict.fromkeys(PRECISIONS, 0.0)
    for row in report.rows:
        found[precision(row)] += row.own_seconds
        found["cast"] += row.all_cast_seconds
    return {name: seconds for name, seconds in found.items() if seconds > 0}
