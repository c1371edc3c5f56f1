"""The plain values of a report: the form of ``CastReport.to_dict`` and of its JSON, made of what the core has counted.

The fields of the core are described in src/bind/bind_report.cpp.
"""

from __future__ import annotations

from typing import Any

import torch

from habana_mp._policy.policy import Policy
from habana_mp._ranks.rank import rank
from habana_mp._report.findings.advice import advice
from habana_mp._report.findings.groups import OWN_FILES, grouped_ping_pong, grouped_recast, never_seen
from habana_mp._report.findings.holders import holders
from habana_mp._report.numbers import measured
from habana_mp._watch.listener import FRONT_ENDS

FORMAT = "habana_mp.report"
VERSION = 1
KEYS = (  # those that are asked for
    *(
        "policies",
        "seconds",
        "op_seconds",
        "cast_seconds",
        "casts",
        "cache_hits",
        "backward_casts",
        "cast_bytes",
        "rows",
    ),
    *("ping_pong", "recast", "never_seen", "missed", "timeline", "advice"),
)
_KINDS = ("cast", "cached", "backward")  # enum class Kind in src/report/report.h


def named(
    counted: dict[str, Any], seconds: float, title: str, low_dtype: str, projected_squares: float
) -> dict[str, Any]:
    """What the core has counted, under the names of ``CastReport.to_dict``; ``low_dtype`` is "" where no numbers were measured."""
    policies = [(Policy(core), FRONT_ENDS[front_end]) for core, front_end in counted["policies"]]
    rows = [_row(*row) for row in counted["rows"]]
    casts = [cast for row in rows for cast in row["casts"]]
    values = {
        "format": FORMAT,
        "version": VERSION,
        "torch": torch.__version__,
        "habana_mp": _version(),
        "title": title,
        "rank": rank(),
        "policies": [
            {"name": policy.name, "text": str(policy), "front_end": front_end} for policy, front_end in policies
        ],
        "seconds": seconds,
        "op_seconds": sum(row["seconds"] for row in rows),
        "backward_seconds": counted["backward_ns"] / 1e9,
        "optimizer_seconds": counted["optimizer_ns"] / 1e9,
        "cast_seconds": sum(cast["seconds"] + cast["backward"]["seconds"] for cast in casts),
        "casts": sum(cast["count"] for cast in casts),
        "cache_hits": sum(cast["cached"] for cast in casts),
        "backward_casts": sum(cast["backward"]["count"] for cast in casts),
        "cast_bytes": sum(cast["bytes"] + cast["backward"]["bytes"] for cast in casts),
        "rows": rows,
        "ping_pong": grouped_ping_pong(counted["ping_pong"]),
        "recast": grouped_recast(counted["recast"]),
        "never_seen": never_seen(rows, [policy for policy, _ in policies]),
        "missed": _missed(rows),
        "timeline": {
            "stride": counted["stride"],
            "events": [
                [start / 1e9, lasted / 1e9, row, source, target, _KINDS[kind]]
                for start, lasted, row, source, target, kind in counted["moments"]
            ],
        },
    }
    if low_dtype:
        values["low_dtype"] = low_dtype
        values["projected_squares"] = projected_squares
        values["edges"] = [list(edge) for edge in counted["edges"]]
    values["advice"] = [line.__dict__ for line in advice(values)]
    return values


def _version() -> str:
    from importlib.metadata import version

    return version("habana_mp")


def _row(  # noqa: PLR0917 - in the order of src/bind/bind_report.cpp
    op: str,
    module: str,
    front_end: int,
    policy: str,
    decision: str,
    rule: str,
    source: str,
    calls: int,
    ns: int,
    cast_ns: int,
    dtypes: list[str],
    runs_in: list[str],
    casts: list[tuple[Any, ...]],
    made: dict[str, int],
    values: tuple[Any, ...] | None,
    unmeasured: dict[str, int],
    unmeasured_backward: dict[str, int],
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "op": op,
        "module": module,
        "front_end": FRONT_ENDS[front_end],
        "policy": policy,
        "decision": decision,
        "rule": rule.replace(OWN_FILES, ""),
        "source": source,
        "calls": calls,
        "seconds": ns / 1e9,
        "cast_seconds": cast_ns / 1e9,
        "dtypes": dtypes,
        "runs_in": runs_in,
        "made_bytes": made,
        "casts": [
            {
                "from": source_dtype,
                "to": target,
                "count": count,
                "cached": cached,
                "bytes": size,
                "seconds": lasted / 1e9,
                "backward": {"count": backward, "bytes": backward_size, "seconds": backward_ns / 1e9},
            }
            for source_dtype, target, count, cached, size, lasted, backward, backward_size, backward_ns in casts
        ],
    }
    if unmeasured:
        row["unmeasured"] = unmeasured
    if unmeasured_backward:
        row["unmeasured_backward"] = unmeasured_backward
    return row if values is None else {**row, "values": measured(values, unmeasured)}


def _missed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The ops that the policy lists and that ran past it, with whoever holds the plain op."""
    found = [row for row in rows if row["decision"] == "missed"]
    held = holders({row["op"] for row in found}) if found else {}
    return [
        {
            "op": row["op"],
            "calls": row["calls"],
            "module": row["module"],
            "source": row["source"],
            "rule": row["rule"],
            "held_by": held[row["op"]],
        }
        for row in found
    ]
