"""The figures of a report for each op and each precision, summed from its rows. The page and the table of the terminal show it.

It takes the dict of ``CastReport.to_dict`` and knows nothing of where that comes from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import habana_mp._core as _core
from habana_mp._report.numbers import why_unmeasured

# What the time of an op is counted as, in the order in which the page draws them.
_WIDE = tuple(name for name in _core.ELIGIBLE_DTYPES if name not in _core.LOW_DTYPES)
PRECISIONS = (*_core.LOW_DTYPES, *_WIDE, "mixed", "other", "cast")


@dataclass
class OpSum:
    """All rows of one op; ``seconds`` is its time without its casts."""

    op: str
    decisions: list[str] = field(default_factory=list)
    rules: list[str] = field(default_factory=list)
    calls: int = 0
    seconds: float = 0.0
    cast_seconds: float = 0.0
    casts: Counter[tuple[str, str]] = field(default_factory=Counter)
    cached: int = 0
    backward: int = 0


def by_op(rows: Iterable[dict[str, Any]]) -> list[OpSum]:
    """The ops of these rows, those that spend most time in casts first, then those that run longest."""
    found: dict[str, OpSum] = {}
    for row in rows:
        into = found.setdefault(row["op"], OpSum(row["op"]))
        if row["decision"] not in into.decisions:
            into.decisions.append(row["decision"])
        if row["rule"] and row["rule"] not in into.rules:
            into.rules.append(row["rule"])
        into.calls += row["calls"]
        into.seconds += own_seconds(row)
        into.cast_seconds += cast_seconds(row)
        for cast in row["casts"]:
            into.casts[cast["from"], cast["to"]] += cast["count"]
            into.cached += cast["cached"]
            into.backward += cast["backward"]["count"]
    return sorted(found.values(), key=lambda each: (-each.cast_seconds, -each.seconds, each.op))


def unlisted(report: dict[str, Any]) -> list[OpSum]:
    """The ops that no list names and nothing decides, those that run longest first."""
    rows = [row for row in report["rows"] if row["decision"] == "unlisted"]
    return sorted(by_op(rows), key=lambda each: (-each.seconds, each.op))


@dataclass
class MissedOp:
    """All calls of one op that ran past the conversion."""

    op: str
    rule: str
    source: str
    calls: int = 0
    modules: list[str] = field(default_factory=list)
    held_by: list[str] = field(default_factory=list)


def missed(report: dict[str, Any]) -> list[MissedOp]:
    """The missed calls of the report, one for each op, those that were called most first."""
    found: dict[str, MissedOp] = {}
    for each in report["missed"]:
        into = found.setdefault(each["op"], MissedOp(each["op"], each["rule"], each["source"]))
        into.calls += each["calls"]
        into.modules += [each["module"]] if each["module"] and each["module"] not in into.modules else []
        into.held_by += [holder for holder in each["held_by"] if holder not in into.held_by]
    return sorted(found.values(), key=lambda each: -each.calls)


def unmeasured(report: dict[str, Any]) -> list[tuple[str, bool, int, str]]:
    """Ops whose error is not measured, or not that of all calls: op, whether in the backward pass, how many calls, and why."""
    found = []
    for op, rows in groupby(sorted(report["rows"], key=lambda row: str(row["op"])), lambda row: str(row["op"])):
        of_op = [*rows]
        for backward in (False, True):
            calls, why = why_unmeasured(of_op, backward=backward)
            if calls:
                found.append((op, backward, calls, why))
    return sorted(found, key=lambda each: -each[2])


def split(report: dict[str, Any]) -> dict[str, float]:
    """Where the time of the block went: forward passes of modules, what ran outside of them (a loss), backward passes, steps of optimizers, and
    what was no op (Python, data).
    """
    optimizer = report.get("optimizer_seconds", 0.0)
    outside = sum(row["seconds"] for row in report["rows"] if not row["module"])
    parts = {
        "model": sum(row["seconds"] for row in report["rows"] if row["module"]),
        "loss": max(0.0, outside - optimizer),
        "backward": report.get("backward_seconds", 0.0),
        "optimizer": optimizer,
    }
    return {**parts, "rest": max(0.0, report["seconds"] - sum(parts.values()))}


def made_bytes(report: dict[str, Any]) -> dict[str, int]:
    """Memory of the results of ops by dtype, the largest first."""
    found: Counter[str] = Counter()
    for row in report["rows"]:
        found.update(row.get("made_bytes", {}))
    return dict(found.most_common())


def other_seconds(report: dict[str, Any]) -> tuple[float, float]:
    """Time of the ops that ran in a low dtype, and of the same in float32, where that was measured."""
    rows = [row["values"] for row in report["rows"] if row.get("values") and precision(row) in _core.LOW_DTYPES]
    return sum(each.get("ran_seconds", 0.0) for each in rows), sum(each.get("other_seconds", 0.0) for each in rows)


def own_seconds(row: dict[str, Any]) -> float:
    """Time of a row without its casts."""
    own: float = row["seconds"] - sum(cast["seconds"] for cast in row["casts"])
    return max(0.0, own)


def cast_seconds(row: dict[str, Any]) -> float:
    """Time in the casts of a row, forward and backward."""
    return sum((cast["seconds"] + cast["backward"]["seconds"] for cast in row["casts"]), 0.0)


def precision(row: dict[str, Any]) -> str:
    """What the time of a row outside of its casts counts as: a dtype, "mixed" where it ran in several, or "other"."""
    runs_in = row["runs_in"]
    if len(runs_in) > 1:
        return "mixed"
    return runs_in[0] if runs_in and runs_in[0] in PRECISIONS else "other"


def seconds_by_precision(report: dict[str, Any]) -> dict[str, float]:
    """The time of all ops, by what it was spent in; what took none is left out."""
    found = dict.fromkeys(PRECISIONS, 0.0)
    for row in report["rows"]:
        found[precision(row)] += own_seconds(row)
        found["cast"] += cast_seconds(row)
    return {name: seconds for name, seconds in found.items() if seconds > 0}
