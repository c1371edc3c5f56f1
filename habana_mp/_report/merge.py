"""The reports of several ranks as one. Pure functions on the plain values of ``CastReport.to_dict``.

Counts, sizes and times are sums over the ranks, also the time of the block, so that shares stay shares. What each rank had is in
``ranks``, and the ops that one rank casts more often than another are in ``uneven``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from habana_mp._report.findings.groups import grouped
from habana_mp._report.numbers import added, with_values

_SUMS = (
    "seconds",
    "op_seconds",
    "backward_seconds",
    "optimizer_seconds",
    "cast_seconds",
    "casts",
    "cache_hits",
    "backward_casts",
    "cast_bytes",
)


def merged(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One report. Its timeline is that of the first rank: the clocks of ranks have no common beginning."""
    first = reports[0]
    rows = {_key(group[0]): _row(group) for group in grouped((row for each in reports for row in each["rows"]), _key)}
    places = {key: place for place, key in enumerate(rows)}
    ranks = [part for number, each in enumerate(reports) for part in _ranks(each, number)]
    if len({each["rank"] for each in ranks}) < len(ranks):  # of one process, or of two runs
        ranks = [{**each, "rank": number} for number, each in enumerate(ranks)]
    return {
        **first,
        "title": ", ".join(dict.fromkeys(each["title"] for each in reports if each["title"])),
        "policies": _distinct(policy for each in reports for policy in each["policies"]),
        **_summed(reports, _SUMS),
        "rows": list(rows.values()),
        "ping_pong": _findings(reports, "ping_pong", ("ops", "path"), ("count", "seconds")),
        "recast": _findings(
            reports,
            "recast",
            ("tensor", "from", "to", "ops", "modules"),
            ("times", "needed", "bytes", "seconds"),
        ),
        "never_seen": [each for each in first["never_seen"] if all(each in other["never_seen"] for other in reports)],
        "missed": _missed(reports),
        "timeline": {
            "seconds": first["seconds"],
            **first["timeline"],
            "events": [
                [start, lasted, places[_key(first["rows"][row])], *rest]
                for start, lasted, row, *rest in first["timeline"]["events"]
            ],
        },
        **_edges(reports, places),
        **(_summed(reports, ("projected_squares",)) if "projected_squares" in first else {}),
        "ranks": ranks,
        "uneven": _uneven(ranks),
    }


def _edges(reports: Sequence[dict[str, Any]], places: dict[tuple[str, ...], int]) -> dict[str, Any]:
    """Of reports with values, by the numbers of the rows here."""
    found: dict[tuple[int, int, str], list[int]] = {}
    for report in reports:
        here = [places[_key(row)] for row in report["rows"]]
        for maker, row, dtype, count, numbers in report.get("edges", []):
            into = found.setdefault((here[maker] if maker >= 0 else -1, here[row], dtype), [0, 0])
            into[0] += count
            into[1] += numbers
    return {"edges": [[*key, *sums] for key, sums in found.items()]} if found else {}


def _ranks(report: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """What a report was made of: itself, or the ranks of one that was merged before."""
    if "ranks" in report:
        return list(report["ranks"])
    casts: dict[str, int] = {}
    for row in report["rows"]:
        casts[row["op"]] = casts.get(row["op"], 0) + sum(cast["count"] for cast in row["casts"])
    sums = {name: report.get(name, 0) for name in _SUMS}
    return [
        {"rank": report.get("rank", number), **sums, "casts_of": {op: count for op, count in casts.items() if count}}
    ]


def _uneven(ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The ops that not all ranks cast alike, with the count of each rank; those that differ most first."""
    ops = dict.fromkeys(op for each in ranks for op in each["casts_of"])
    counts = {op: [each["casts_of"].get(op, 0) for each in ranks] for op in ops}
    differ = [{"op": op, "casts": count} for op, count in counts.items() if len(set(count)) > 1]
    return sorted(differ, key=lambda each: min(each["casts"]) - max(each["casts"]))


def _key(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(row[name] for name in ("op", "module", "front_end", "policy", "decision", "rule"))


def _row(rows: list[dict[str, Any]]) -> dict[str, Any]:
    casts = grouped((cast for row in rows for cast in row["casts"]), lambda cast: (cast["from"], cast["to"]))
    values = [row["values"] for row in with_values(rows)]
    return {
        **rows[0],
        **({"values": added(values)} if values else {}),
        **{
            key: added(row.get(key, {}) for row in rows)
            for key in ("unmeasured", "unmeasured_backward")
            if any(key in row for row in rows)
        },
        **_summed(rows, ("calls", "seconds", "cast_seconds")),
        "dtypes": _distinct(dtype for row in rows for dtype in row["dtypes"]),
        "runs_in": _distinct(dtype for row in rows for dtype in row["runs_in"]),
        "casts": [
            {
                **group[0],
                **_summed(group, ("count", "cached", "bytes", "seconds")),
                "backward": _summed([cast["backward"] for cast in group], ("count", "bytes", "seconds")),
            }
            for group in casts
        ],
    }


def _findings(
    reports: Sequence[dict[str, Any]], name: str, same: tuple[str, ...], sums: tuple[str, ...]
) -> list[dict[str, Any]]:
    found = grouped(
        (each for report in reports for each in report[name]), lambda each: repr([each[key] for key in same])
    )
    return sorted(({**group[0], **_summed(group, sums)} for group in found), key=lambda each: -each["seconds"])


def _missed(reports: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    same = ("op", "module", "source", "rule")
    found = grouped(
        (each for report in reports for each in report["missed"]), lambda each: tuple(each[key] for key in same)
    )
    return [
        {
            **group[0],
            **_summed(group, ("calls",)),
            "held_by": _distinct(holder for each in group for holder in each["held_by"]),
        }
        for group in found
    ]


def _summed(items: Sequence[dict[str, Any]], names: Iterable[str]) -> dict[str, Any]:
    return {name: sum(item.get(name, 0) for item in items) for name in names}


def _distinct(items: Iterable[Any]) -> list[Any]:
    return [group[0] for group in grouped(items, repr)]
