"""What a report with values does not know, why, and what to do. Each answer is a pair of the two texts, or None. A zero would read as no error."""  # (D50)

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import structs

import habana_mp._core as _core
from habana_mp._report.added import added, grouped
from habana_mp._report.data import Error, Report, Row
from habana_mp._report.numbers import (
    LocalError,
    change_of,
    is_all_seen,
    local_error,
    losses_of,
    saw_backward,
    why_unmeasured,
)
from habana_mp._show.units import encodable

Why = tuple[str, str]

_CHOOSE = frozenset(["topk", "argmax", "argmin", "sort", "argsort", "multinomial", "kthvalue", "mode"])

OUTSIDE = "no policy was in force"
_NO_OP = "no op was seen", "the report sees eager calls, in the process that it was made in"
_COMPILED = (
    "compiled code ran, and a report does not see what it rounds",
    'run the step under torch.compiler.set_stance("force_eager")',
)
_NO_POLICY = (
    f"{OUTSIDE}, so no list has an effect",
    "call hmp.convert, or enter hmp.autocast, before the ops run",
)
_NOT_WORTH_IT = (
    "no edit of the lists is worth it",
    "none takes away 5 % of the error of a loss or of projected outputs, and none saves time in the low dtype for less than 1 % of it",
)
_NO_BACKWARD = (
    "no backward pass was seen, so it is not known which op makes the error",
    "call backward in the block of the report, or report.project(outputs), with gradients on",
)
_UNREACHED = "the backward pass reached no op whose error is measured, so it is not known which op makes the error"
_ELSEWHERE = "call backward on a loss that is computed from the results of the measured ops"
ON_THREAD = "open the report on the thread that runs the step, inside the function that the thread calls"
_NONE_MEASURED = (
    "no op was measured, so no edit is known to be worth it",
    'no policy changes float64 and ops that only move numbers; float32 ops are measured with values=True, not with values="errors"',
)
_RAISED = (
    "a backward pass raised an error before its end, so it is not known which op makes the error",
    "open the report round steps whose backward passes come to their ends",
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
_INSIDES_WIDE = "it cannot run once more, and the ops inside it, which were measured, ran in float32"


def is_outside(report: Report) -> bool:
    """Whether something ran, and no policy was in force in any call. It may have been in compiled code."""
    return bool(report.rows) and not _has_policy(report) and not report.compiled


def no_op(report: Report) -> Why:
    """Of a report without rows."""
    return _COMPILED if report.compiled else _NO_OP


def why_not_all(report: Report) -> Why | None:
    """Where a part of what may round was not seen: whatever the ops that were seen add up to, it is not the error."""
    if is_all_seen(report):
        return None
    return _COMPILED if report.compiled else _RAISED


def why_no_edit(report: Report) -> Why | None:
    """Of a report in which ``edits`` finds none."""
    if not report.rows:
        return no_op(report)
    if why := why_not_all(report):
        return why
    return why_no_shares(report) if _has_policy(report) else _NO_POLICY


def no_edit(report: Report) -> Why:
    """What to say, and why, where ``edits`` finds none."""
    return why_no_edit(report) or _NOT_WORTH_IT


def why_nothing(report: Report) -> Why | None:
    """Where no error could be found: of a block in which nothing ran, or all in float32 because no policy was in force."""
    if not report.rows:
        return no_op(report)
    # Low tensors of the program's own, and what torch.autocast casts, need no policy.
    low = any(ran_low(row) or row.unmeasured for row in report.rows)
    if low or _errors(report.rows, "ran") or _has_policy(report):
        return None
    return _COMPILED if report.compiled else _NO_POLICY


def why_no_shares(report: Report) -> Why | None:
    rows = report.rows
    if not any(row.measured.calls or row.unmeasured for row in rows):
        return _NONE_MEASURED
    if not saw_backward(rows):
        return _why_unreached(rows) if report.backward_seconds or report.projected_squares else _NO_BACKWARD
    if not any(change(row) for change in (change_of(rows), change_of(rows, "low")) for row in rows):
        return _NOT_FINITE
    return None


def _why_unreached(rows: list[Row]) -> Why:
    if any("thread" in (row.unmeasured or {}) for row in rows):
        return _UNREACHED, ON_THREAD
    return _UNREACHED, why_unmeasured(rows)[1] or _ELSEWHERE


def why_no_share(report: Report, *, what_if: bool, of_loss: bool) -> Why | None:
    """Why no op has a share, or with ``of_loss`` no change of the loss. Where all that ran is known to be exact, each op has 0."""
    if report.rows and (unseen := why_not_all(report)):
        return unseen
    rows, why = report.rows, why_nothing(report)
    if why and not (what_if and report.rows):
        return why
    if what_if and not any(row.measured.range.numbers for row in rows):
        return _NOT_LOW
    if _errors(rows, "ran") or _errors(rows, "low"):
        if why := why_no_shares(report):
            return why
        if of_loss and not losses_of(rows):
            return _NO_LOSS
    return None


def why_no_error(report: Report, rows: list[Row], which: str) -> Why | None:
    """Why the error of some rows is not known: "ran", "low" (what if) or "backward". What ran in float32 is exact, and so is what only moves numbers."""
    if which == "backward" and not report.backward_seconds:
        return "no backward pass was seen", "call backward in the block of the report"
    asked = [row for row in rows if _computes(row) and (which == "low" or ran_low(row))]
    if not asked or any(_is_measured(row, which) for row in asked):
        return None
    if which == "low" and not any(_is_measured(row, which) for row in report.rows if not ran_low(row)):
        return _NOT_LOW
    _, why = why_unmeasured(asked, backward=which == "backward")
    if not why and which == "ran" and any(map(has_wide_insides, asked)):
        why = _INSIDES_WIDE
    ran = any(row.measured.backward_calls if which == "backward" else row.measured.calls for row in asked)
    ops = ", ".join(dict.fromkeys(row.op for row in asked))
    return f"the error of {ops} is not measured", why or (_NO_NUMBERS if ran else _INSIDE)


def known_errors(report: Report) -> dict[str, LocalError]:
    """Of the ops as they ran."""
    found = {}
    for group in grouped(report.rows, lambda row: row.op):
        if any(row.values for row in group) and why_no_error(report, group, "ran") is None:
            found[group[0].op] = local_error(added(row.measured.ran for row in group))
    return found


def unmeasured(report: Report) -> Iterator[Why]:
    """A text for each op that ran in a low dtype and of which no call could be measured."""
    for group in grouped(report.rows, lambda row: row.op):
        if any(row.unmeasured or has_wide_insides(row) for row in group) and (
            why := why_no_error(report, group, "ran")
        ):
            yield why


def _has_policy(report: Report) -> bool:
    return any(row.policy for row in report.rows)


def _errors(rows: Iterable[Row], which: str) -> bool:
    return any(error_of(row, which).squares for row in rows)


def _computes(row: Row) -> bool:
    # Of the parts that ops are made of the core knows those alone that it has tried to measure.
    return _core.computes(encodable(row.op)) or bool(row.unmeasured or row.unmeasured_backward)


def ran_low(row: Row) -> bool:
    # What torch.autocast casts it casts unseen: the results show it.
    return any(dtype in _core.LOW_DTYPES for dtype in (*row.runs_in, *row.made_bytes))


def has_wide_insides(row: Row) -> bool:
    """Whether an op that ran low is known by what is inside it alone, which did not: as attention with dropout, on the CPU."""
    values = row.measured
    return ran_low(row) and not any(structs.astuple(values.ran)) and any(structs.astuple(values.low))


def _is_measured(row: Row, which: str) -> bool:
    if which == "ran" and has_wide_insides(row):
        return False
    return any(structs.astuple(error_of(row, which))) or bool(which != "backward" and row.measured.range.numbers)


def error_of(row: Row, which: str) -> Error:
    """Of the calls as they "ran", in the "low" dtype, or of the "backward" pass."""
    error: Error = getattr(row.measured, which)
    return error


def may_flip(report: Report) -> list[Row]:
    """Rows that choose by numbers that are off, where it is not known whether they choose as in float32."""
    if not any(row.measured.ran.squares for row in report.rows):
        return []
    followed = {loss.choice.row for loss in report.losses or [] if loss.choice and loss.choice.choices}
    given_off = _given_off(report)
    chose = [row for number, row in enumerate(report.rows) if row.op in _CHOOSE and number in given_off - followed]
    return [row for row in chose if not row.measured.choices]


def _given_off(report: Report) -> set[int]:
    """Numbers of rows that were given what ops have rounded, or ops behind these have computed."""
    users: dict[int, set[int]] = {}
    for edge in report.edges or []:
        users.setdefault(edge.maker, set()).add(edge.row)
    rows = enumerate(report.rows)
    waiting = [number for number, row in rows if row.measured.ran.squares or row.unmeasured or ran_low(row)]
    found: set[int] = set()
    while waiting:
        more = users.get(waiting.pop(), set()) - found
        found |= more
        waiting += more
    return found
