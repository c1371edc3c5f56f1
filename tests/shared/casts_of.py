"""Casts of an op that a report may not have seen: ``report.casts`` raises for it, because its name may be wrong."""

from __future__ import annotations

from habana_mp.hmp import CastReport


def casts_of(report: CastReport, op: str) -> int:
    return sum(row.casts for row in report.rows if row.op == op)
