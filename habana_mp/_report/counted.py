"""A report of what the core has counted (src/bind/bind_report.cpp), and of what is found in it."""

from __future__ import annotations

import functools
from importlib.metadata import version
from typing import Any

import torch
from msgspec import UNSET, convert

from habana_mp._cast import dtype_name
from habana_mp._compiled import graphs
from habana_mp._policy.policy import Policy
from habana_mp._ranks.rank import rank
from habana_mp._report.data import (
    ChoicesWorth,
    CompiledGraph,
    Edge,
    Format,
    InForce,
    Loss,
    Missed,
    PingPong,
    Read,
    Report,
    Row,
    Timeline,
)
from habana_mp._report.findings.groups import OWN_FILES, Repeated, grouped_ping_pong, grouped_recast, never_seen
from habana_mp._report.findings.holders import holders


def report_of_counts(
    counted: dict[str, Any],
    seconds: float,
    *,
    title: str,
    steps: list[float],
    low_dtype: Any,
    projected_squares: float,
    forked_casts: int,
    formats: tuple[str, ...] = (),
) -> Report:
    """``low_dtype``: of calls outside of any policy; "" where no numbers were measured."""
    policies = [(Policy(each["policy"]), each["front_end"]) for each in counted["policies"]]
    if low_dtype and policies:  # the report may be round its regions, or round another one
        most = max(counted["policies"], key=lambda each: int(each["calls"]))
        low_dtype = dtype_name(Policy(most["policy"]).low_dtype)
    places: dict[tuple[str, str], dict[int, int]] = {}
    for row in counted["rows"]:
        row["rule"] = row["rule"].replace(OWN_FILES, "")
        known = places.setdefault((row["op"], row["module"]), {0: 0})
        row["place"] = known.setdefault(row["place"], len(known))  # the core has a hash
    rows = convert(counted["rows"], list[Row])
    casts = [cast for row in rows for cast in row.casts]
    return Report(
        torch=str(torch.__version__),  # a subclass of str
        habana_mp=_version(),
        title=title,
        rank=rank(),
        policies=[InForce(policy.name, str(policy), front_end) for policy, front_end in policies],
        seconds=seconds,
        op_seconds=sum(row.seconds for row in rows),
        backward_seconds=counted["backward_seconds"],
        backward_raised=counted["backward_raised"],
        optimizer_seconds=counted["optimizer_seconds"],
        cast_seconds=sum(row.all_cast_seconds for row in rows),
        casts=sum(cast.count for cast in casts),
        cache_hits=sum(cast.cached for cast in casts),
        backward_casts=sum(cast.backward.count for cast in casts),
        cast_bytes=sum(cast.bytes + cast.backward.bytes for cast in casts),
        rows=rows,
        ping_pong=grouped_ping_pong(convert(counted["ping_pong"], list[PingPong])),
        recast=grouped_recast(convert(counted["recast"], list[Repeated])),
        never_seen=never_seen(rows, [policy for policy, _ in policies]),
        missed=_missed(rows),
        compiled=[_compiled(number, calls) for number, calls in counted["compiled"].items()],
        forked_casts=forked_casts,
        timeline=convert(counted["timeline"], Timeline),
        steps=steps or UNSET,
        low_dtype=low_dtype or UNSET,
        formats=convert(formats, list[Format]) if formats else UNSET,
        losses=convert(counted["losses"], list[Loss]) if low_dtype else UNSET,
        choices_worth=convert(counted["choices_worth"], list[ChoicesWorth]) if low_dtype else UNSET,
        projected_squares=projected_squares if low_dtype else UNSET,
        edges=convert(counted["edges"], list[Edge]) if low_dtype else UNSET,
        reads=convert(counted["reads"], list[Read]) if low_dtype else UNSET,
        advice=[],
    )


@functools.cache
def _version() -> str:
    return version("habana_mp")  # it reads a file


def _compiled(number: str, calls: int) -> CompiledGraph:
    graph = graphs.known(number)
    if graph is None:
        return CompiledGraph(number, "unknown", calls, [], 0)
    casts = [
        {"from": each.source, "to": each.target, "rule": each.rule.replace(OWN_FILES, ""), "count": count}
        | {"op": each.op, "backward": each.backward}
        for each, count in graph.casts.items()
    ]
    found = {"graph": number, "rounds": graph.rounds, "calls": calls, "casts": casts, "unrounded": graph.unrounded}
    return convert(found, CompiledGraph)


def _missed(rows: list[Row]) -> list[Missed]:
    """The ops that the policy lists and that ran past it, with whoever holds the plain op."""
    found = [row for row in rows if row.decision == "missed"]
    held = holders({row.op for row in found}) if found else {}
    return [Missed(row.op, row.calls, row.module, row.source, row.rule, held[row.op]) for row in found]
