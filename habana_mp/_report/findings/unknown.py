"""What a report with values does not know, why, and what to do. Each answer is a pair of the two texts, or None. A zero would read as no error (D50)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import habana_mp._core as _core
from habana_mp._report.findings.groups import grouped
from habana_mp._report.numbers import (
    LocalError,
    added,
    change_of,
    local_error,
    saw_backward,
    why_unmeasured,
    with_values,
)
from habana_mp._show.units import encodable

Why = tuple[str, str]
_Row = dict[str, Any]

NO_OP = "no op was seen", "the report sees eager calls, in the process that it was made in"
_NO_POLICY = (
    "no policy was in force, so no list has an effect",
    "call hmp.convert, or enter hmp.autocast, before the ops run",
)
_NO_BACKWARD = (
    "no backward pass was seen, so it is not known which op makes the error",
    "call backward in the block of the report, or report.project(outputs), with gradients on",
)
_NOT_FINITE = (
    "the loss or its gradients are not finite or are zero, so it is not known which op makes the error",
    "run habana-mp find-nonfinite, or hmp.find_nonfinite: it names the op that makes a NaN or an infinity",
)
_NO_LOSS = (
    "no backward pass of a loss was seen, so the change of a loss is not known",
    "error_share is known of the outputs that report.project was called with",
)
_NOT_LOW = (
    "no op that ran in float32 was measured in the low dtype",
    'hmp.report(values=True) measures it if the op can run once more, and values="errors" leaves it out',
)
_NO_NUMBERS = "all its numbers are zero or not finite in float32"
_INSIDE = "it ran inside an op that is measured as a whole, or that is not measured"


def why_no_edit(report: dict[str, Any]) -> Why | None:
    """Of a report in which ``edits`` finds none."""
    if not report["rows"]:
        return NO_OP
    if not _has_policy(report):
        return _NO_POLICY
    return why_no_shares([*with_values(report["rows"])])


def why_nothing(report: dict[str, Any]) -> Why | None:
    """Where no error could be found: of a block in which nothing ran, or all in float32 because no policy was in force."""
    if not report["rows"]:
        return NO_OP
    has_errors = _errors(with_values(report["rows"]), "ran")
    return None if has_errors or _has_policy(report) else _NO_POLICY


def why_no_shares(rows: list[_Row]) -> Why | None:
    """Of rows with values."""
    if not saw_backward(rows):
        return _NO_BACKWARD
    if not any(change(row) for change in (change_of(rows), change_of(rows, what_if=True)) for row in rows):
        return _NOT_FINITE
    return None


def why_no_share(report: dict[str, Any], *, what_if: bool, of_loss: bool) -> Why | None:
    """Why no op has a share, or with ``of_loss`` no change of the loss. Where all that ran is known to be exact, each op has 0."""
    rows = [*with_values(report["rows"])]
    why = why_nothing(report)
    if why and not (what_if and report["rows"]):
        return why
    if what_if and not any(row["values"]["range"].get("numbers") for row in rows):
        return _NOT_LOW
    if _errors(rows, "ran") or _errors(rows, "low"):
        if why := why_no_shares(rows):
            return why
        if of_loss and not any(row["values"]["changes"] for row in rows):
            return _NO_LOSS
    return None


def why_no_error(report: dict[str, Any], rows: list[_Row], which: str) -> Why | None:
    """Why the error of some rows is not known: "ran", "low" (what if) or "backward". What ran in float32 is exact, and so is what only moves numbers."""
    if which == "backward" and not report.get("backward_seconds"):
        return "no backward pass was seen", "call backward in the block of the report"
    asked = [row for row in rows if _computes(row) and (which == "low" or _ran_low(row))]
    if not asked or any(_is_measured(row, which) for row in asked):
        return None
    if which == "low" and not any(_is_measured(row, which) for row in report["rows"] if not _ran_low(row)):
        return _NOT_LOW
    _, why = why_unmeasured(asked, backward=which == "backward")
    ran = any(row["values"]["backward_calls" if which == "backward" else "calls"] for row in with_values(asked))
    ops = ", ".join(dict.fromkeys(row["op"] for row in asked))
    return f"the error of {ops} is not measured", why or (_NO_NUMBERS if ran else _INSIDE)


def known_errors(report: dict[str, Any]) -> dict[str, LocalError]:
    """Of the ops as they ran."""
    found = {}
    for group in grouped(report["rows"], lambda row: row["op"]):
        rows = [*with_values(group)]
        if rows and why_no_error(report, group, "ran") is None:
            found[group[0]["op"]] = local_error(added(row["values"]["ran"] for row in rows))
    return found


def unmeasured(report: dict[str, Any]) -> Iterator[Why]:
    """A text for each op that ran in a low dtype and of which no call could be measured."""
    for group in grouped(report["rows"], lambda row: row["op"]):
        if any(row.get("unmeasured") for row in group) and (why := why_no_error(report, group, "ran")):
            yield why


def _has_policy(report: dict[str, Any]) -> bool:
    return any(row["policy"] for row in report["rows"])


def _errors(rows: Iterable[_Row], which: str) -> bool:
    return any(row["values"].get(which, {}).get("squares", 0) for row in rows)


def _computes(row: _Row) -> bool:
    # Of the parts that ops are made of the core knows those alone that it has tried to measure.
    return _core.computes(encodable(row["op"])) or "unmeasured" in row or "unmeasured_backward" in row


def _ran_low(row: _Row) -> bool:
    return any(dtype in _core.LOW_DTYPES for dtype in row["runs_in"])


def _is_measured(row: _Row, which: str) -> bool:
    values = row.get("values")
    if values is None:
        return False
    return any(values[which].values()) or bool(which != "backward" and values["range"].get("numbers"))
