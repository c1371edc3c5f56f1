"""The reports of several ranks as one.

Counts, sizes and times are sums over the ranks, also the time of the block, so that shares stay shares. What each rank had is in
``ranks``, and the ops that one rank casts more often than another are in ``uneven``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from msgspec import UNSET, structs

from habana_mp._report.added import added, added_alike, added_counts, key, with_signs
from habana_mp._report.data import Edge, PingPong, Rank, Read, Recast, Report, Row, Timeline, Totals, Uneven

_Found = TypeVar("_Found", PingPong, Recast)


def merged(reports: Sequence[Report]) -> Report:
    """One report. Its timeline is that of the first rank: the clocks of ranks have no common beginning."""
    reports = [
        structs.replace(each, rows=[_with_signs(row, f"{number} {each.seconds}") for row in each.rows])
        for number, each in enumerate(reports)
    ]
    first, whole = reports[0], added(reports)
    places = {key(row): place for place, row in enumerate(whole.rows)}
    rows = [[places[key(row)] for row in each.rows] for each in reports]
    ranks = [part for each in reports for part in _ranks(each)]
    if len({each.rank for each in ranks}) < len(ranks):  # of one process, or of two runs
        ranks = [structs.replace(each, rank=number) for number, each in enumerate(ranks)]
    return structs.replace(
        whole,
        title=", ".join(dict.fromkeys(each.title for each in reports if each.title)),
        ping_pong=dearest(whole.ping_pong),
        recast=dearest(whole.recast),
        never_seen=[each for each in first.never_seen if all(each in other.never_seen for other in reports)],
        timeline=_timeline(first, rows[0]),
        edges=UNSET if whole.low_dtype is UNSET else _edges(reports, rows),
        reads=UNSET if whole.low_dtype is UNSET else _reads(reports, rows),
        steps=first.steps,
        ranks=ranks,
        uneven=_uneven(ranks),
    )


def _with_signs(row: Row, seed: str) -> Row:
    return structs.replace(row, values=with_signs(row.values, seed)) if row.values else row


def dearest(found: list[_Found]) -> list[_Found]:
    return sorted(found, key=lambda each: -each.seconds)


def _timeline(report: Report, places: list[int]) -> Timeline:
    own = report.timeline
    events = [structs.replace(event, row=places[event.row]) for event in own.events]
    return Timeline(stride=own.stride, seconds=report.seconds if own.seconds is UNSET else own.seconds, events=events)


def _edges(reports: Sequence[Report], rows: list[list[int]]) -> list[Edge]:
    """By the numbers of the rows here."""
    return added_alike(
        structs.replace(edge, maker=places[edge.maker] if edge.maker >= 0 else -1, row=places[edge.row])
        for report, places in zip(reports, rows, strict=True)
        for edge in report.edges or []
    )


def _reads(reports: Sequence[Report], rows: list[list[int]]) -> list[Read]:
    found = []
    for report, places in zip(reports, rows, strict=True):
        for read in report.reads or []:
            first, second = sorted(places[each] if each >= 0 else each for each in (read.first, read.second))
            found.append(structs.replace(read, maker=places[read.maker], first=first, second=second))
    return added_alike(found)


def _ranks(report: Report) -> list[Rank]:
    """What a report was made of: itself, or the ranks of one that was merged before."""
    if report.ranks:
        return report.ranks
    casts = added_counts({row.op: sum(cast.count for cast in row.casts)} for row in report.rows)
    sums = {name: getattr(report, name) for name in Totals.__struct_fields__}
    return [Rank(**sums, rank=report.rank, casts_of={op: count for op, count in casts.items() if count})]


def _uneven(ranks: list[Rank]) -> list[Uneven]:
    """The ops that not all ranks cast alike, with the count of each rank; those that differ most first."""
    ops = dict.fromkeys(op for each in ranks for op in each.casts_of)
    found = [Uneven(op, [each.casts_of.get(op, 0) for each in ranks]) for op in ops]
    differ = [each for each in found if len(set(each.casts)) > 1]
    return sorted(differ, key=lambda each: min(each.casts) - max(each.casts))
