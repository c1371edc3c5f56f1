"""``ReportDiff``: the casts that differ between two reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ReportDiff:
    """Casts by op and dtype that differ between two reports: (op, from, to, before, after) each. False where none do."""

    changes: tuple[tuple[str, str, str, int, int], ...]

    @classmethod
    def between(cls, before: dict[str, Any], after: dict[str, Any]) -> ReportDiff:
        first, second = _counts(before), _counts(after)
        keys = sorted({*first, *second})
        return cls(
            tuple(
                (*key, first.get(key, 0), second.get(key, 0)) for key in keys if first.get(key, 0) != second.get(key, 0)
            )
        )

    def __bool__(self) -> bool:
        return bool(self.changes)

    def __str__(self) -> str:
        if not self.changes:
            return "no difference: the same casts"
        rows = [(op, f"{source} -> {to}", str(a), str(b), f"{b - a:+}") for op, source, to, a, b in self.changes]
        head = ("op", "cast", "before", "after", "")
        widths = [max(len(row[i]) for row in [head, *rows]) for i in range(5)]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if i < 2 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in [head, *rows]
        )


def _counts(report: dict[str, Any]) -> dict[tuple[str, str, str], int]:
    counts: dict[tuple[str, str, str], int] = {}
    for row in report["rows"]:
        for cast in row["casts"]:
            key = (row["op"], cast["from"], cast["to"])
            counts[key] = counts.get(key, 0) + cast["count"]
    return counts
