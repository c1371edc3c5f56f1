"""``ReportDiff``: what differs between two reports."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from habana_mp._report.data import Report
from habana_mp._report.findings.unknown import OUTSIDE, known_errors
from habana_mp._report.numbers import LocalError
from habana_mp._show.short import Short
from habana_mp._show.units import counted, time
from habana_mp._show.writing import written


@dataclass(frozen=True, repr=False)
class ReportDiff(Short):
    """Casts by op and dtype that differ between two reports: (op, from, to, before, after) each. False where none do.

    ``errors`` are the local errors of ops as they ran, where both reports have values and they differ by a tenth: (op, before, after).
    ``seconds`` are the times of the two blocks, ``names`` their titles or policies.

    Example:
        >>> with hmp.report() as without:
        ...     y = model(x)
        >>> with hmp.report() as r, hmp.autocast("cpu"):
        ...     y = model(x)
        >>> print(without.diff(r))
    """

    changes: tuple[tuple[str, str, str, int, int], ...]
    errors: tuple[tuple[str, float, float], ...] = ()
    seconds: tuple[float, float] = field(default=(0.0, 0.0), compare=False)
    names: tuple[str, str] = field(default=("", ""), compare=False)

    @classmethod
    def between(cls, before: Report, after: Report) -> ReportDiff:
        first, second = _counts(before), _counts(after)
        keys = sorted({*first, *second})
        return cls(
            tuple(
                (*key, first.get(key, 0), second.get(key, 0)) for key in keys if first.get(key, 0) != second.get(key, 0)
            ),
            tuple(_changed_errors(known_errors(before), known_errors(after))),
            (before.seconds, after.seconds),
            (_name(before), _name(after)),
        )

    def __bool__(self) -> bool:
        return bool(self.changes)

    def __str__(self) -> str:
        lines = ["no difference: the same casts"] if not self.changes else [*_aligned(*self._casts())]
        if self.errors:
            lines += ["", *_aligned(*self._errors())]
        return "\n".join(lines)

    def _line(self) -> str:
        return f"{counted(len(self.changes), 'change')} of casts, {len(self.errors):,} of errors"

    def _casts(self) -> tuple[Sequence[str], list[Sequence[str]], int]:
        rows = [(op, f"{source} -> {to}", str(a), str(b), f"{b - a:+}") for op, source, to, a, b in self.changes]
        return ("op", "cast", "before", "after", ""), [*rows], 2

    def _errors(self) -> tuple[Sequence[str], list[Sequence[str]], int]:
        rows = [(op, f"{a:.2g}", f"{b:.2g}", f"{b / a:.2g}x" if a else "") for op, a, b in self.errors]
        return ("op", "error before", "after", ""), [*rows], 1

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """One HTML page that needs no network, which is also written to ``path`` if that is given.

        Raises:
            OSError: the file cannot be written.
        """
        from habana_mp._show.html import whole_page

        tables = [
            (title, [name if i < texts else f"{name}|number" for i, name in enumerate(head)], rows, texts)
            for title, (head, rows, texts) in (("Casts", self._casts()), ("Errors of ops, as they ran", self._errors()))
            if rows
        ]
        blocks = [*zip(("before", "after"), self.names, map(time, self.seconds), strict=True)]
        text = whole_page("diff.html", tables=tables, blocks=blocks)
        return written(text, path)

    def _repr_html_(self) -> str:
        from habana_mp._show.html import framed

        return framed(self.to_html())


def _name(report: Report) -> str:
    policies = ", ".join(policy.name for policy in report.policies) or OUTSIDE
    return ": ".join(filter(None, (report.title, policies)))


def _aligned(head: Sequence[str], rows: list[Sequence[str]], texts: int) -> Iterator[str]:
    """The first ``texts`` columns to the left, the figures behind them to the right."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, *rows]:
        cells = zip(row, widths, strict=True)
        yield "  ".join(
            cell.ljust(width) if i < texts else cell.rjust(width) for i, (cell, width) in enumerate(cells)
        ).rstrip()


def _counts(report: Report) -> dict[tuple[str, str, str], int]:
    counts: dict[tuple[str, str, str], int] = {}
    for row in report.rows:
        for cast in row.casts:
            key = (row.op, cast.from_, cast.to)
            counts[key] = counts.get(key, 0) + cast.count
    return counts


def _changed_errors(before: dict[str, LocalError], after: dict[str, LocalError]) -> Iterator[tuple[str, float, float]]:
    for op in sorted({*before} & {*after}):
        a, b = float(before[op]), float(after[op])
        if abs(a - b) > 0.1 * max(a, b):
            yield op, a, b
