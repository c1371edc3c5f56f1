"""A report for other tools: Chrome's trace viewer (also Perfetto), and TensorBoard."""

from __future__ import annotations

from typing import Any

from habana_mp._report.data import Report
from habana_mp._report.findings.unknown import known_errors
from habana_mp._report.numbers import share, shares_known


def chrome_trace(report: Report) -> dict[str, Any]:
    """The casts of the timeline as complete events, in microseconds, one track for each kind: cast, from the cache, backward."""
    tracks = {"cast": 1, "cached": 2, "backward": 3}
    named = [
        {"ph": "M", "pid": report.rank, "tid": number, "name": "thread_name", "args": {"name": f"casts: {kind}"}}
        for kind, number in tracks.items()
    ]
    events = []
    for event in report.timeline.events:
        row = report.rows[event.row]
        events.append(
            {
                "ph": "X",
                "pid": report.rank,
                "tid": tracks[event.kind],
                "cat": "cast",
                "name": f"{row.op}: {event.from_} -> {event.to}",
                "ts": event.start * 1e6,
                "dur": event.seconds * 1e6,
                "args": {"module": row.module, "rule": row.rule, "source": row.source},
            }
        )
    return {"traceEvents": [*named, *events], "displayTimeUnit": "ms"}


def scalars(report: Report) -> dict[str, float]:
    """What is worth a curve, by its name in TensorBoard: casts and their time, and the errors of ops where they were measured."""
    found = {
        "casts/count": float(report.casts),
        "casts/cache_hits": float(report.cache_hits),
        "casts/backward": float(report.backward_casts),
        "casts/share_of_time": report.cast_seconds / report.seconds if report.seconds else 0.0,
    }
    with_shares = shares_known(report)
    for op, error in known_errors(report).items():
        found[f"error/{op}"] = float(error)
        if with_shares:
            found[f"error_share/{op}"] = share(report.rows, (row for row in report.rows if row.op == op))
    return found
