"""``OpCalls``: a row of a report as its users see it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from habana_mp._report.data import Report
from habana_mp._report.findings.unknown import why_no_error, why_nothing
from habana_mp._report.numbers import LocalError, change_of, local_error, shares_known
from habana_mp._show.short import Short
from habana_mp._show.units import counted
from habana_mp._show.units import share as percent


@dataclass(frozen=True, repr=False)
class OpCalls(Short):
    """The calls of an op in a module that had one decision, with values from one place in the code: a row of a report.

    Attributes:
        op: the op.
        module: the class of the root module and the path below it, such as "Net: encoder.0"; "" outside of modules.
        policy: the name of the policy that was in force, or "".
        decision: the rule, or the reason why there is none, such as "unlisted".
        rule: the rule with the line of the list that sets it, or "".
        source: the first line of your code that made such a call.
        calls: how many calls there were.
        seconds: their time, with their forward casts.
        cast_seconds: the time of these casts.
        runs_in: the dtypes in which the op ran.
        casts: how many tensors were cast for them.
        cache_hits: how many of these casts the weight cache had already.
        backward_casts: how many gradients were cast back.
        error: the error of the calls as they ran; None if it is not measured.
        share: the part of the error of the loss, or of the outputs, that they make; None if it is not known.
        choices: how many choices, such as the indices of argmax, they made from numbers with an error. It is known in ``no_grad``.
        flipped: how many of these float32 would have made otherwise.
        formats: the errors that the calls would have in 8 bits, by "weight_int8" and "int8", where a report with ``formats`` measured them.

    Example:
        >>> with hmp.autocast("cpu"), hmp.report() as r:
        ...     y = model(x)
        >>> [row.module for row in r.rows if row.op == "linear" and row.casts]
        [...]
    """

    op: str
    module: str
    policy: str
    decision: str
    rule: str
    source: str
    calls: int
    seconds: float
    cast_seconds: float
    runs_in: tuple[str, ...]
    casts: int
    cache_hits: int
    backward_casts: int
    error: LocalError | None
    share: float | None
    choices: int
    flipped: int
    formats: dict[str, LocalError]

    def _line(self) -> str:
        where = f" in {self.module}" if self.module else ""
        parts = [f"{self.op}{where}", self.decision, counted(self.calls, "call"), counted(self.casts, "cast")]
        if self.error is not None:
            parts.append(f"error {float(self.error):.2g}")
        if self.share:
            parts.append(f"{percent(self.share, 1.0)} of all error")
        parts += [f"in {name} {float(error):.2g}" for name, error in self.formats.items()]
        if self.choices:
            parts.append(f"{self.flipped:,} of {self.choices:,} choices differ")
        return ", ".join(parts)


def op_calls(report: Report) -> Iterator[OpCalls]:
    """Of all rows, in their order."""
    size = change_of(report.rows)
    whole = sum(map(size, report.rows)) if shares_known(report) else 0.0
    measured = bool(report.low_dtype) and why_nothing(report) is None
    for row in report.rows:
        known = measured and why_no_error(report, [row], "ran") is None
        yield OpCalls(
            op=row.op,
            module=row.module,
            policy=row.policy,
            decision=row.decision,
            rule=row.rule,
            source=row.source,
            calls=row.calls,
            seconds=row.seconds,
            cast_seconds=row.cast_seconds,
            runs_in=tuple(row.runs_in),
            casts=sum(cast.count for cast in row.casts),
            cache_hits=sum(cast.cached for cast in row.casts),
            backward_casts=sum(cast.backward.count for cast in row.casts),
            error=local_error(row.measured.ran) if known else None,
            share=size(row) / whole if known and whole > 0 else None,
            choices=row.measured.choices,
            flipped=row.measured.flipped,
            formats={each.format: local_error(each.error) for each in row.measured.formats},
        )
