"""The data of a report. Its files say what each field is, and know nothing of how it is counted or shown."""

from habana_mp._report.data.base import Adds, CastFrom, CastTo, Data, ListName, Why
from habana_mp._report.data.compiled import CompiledCast, CompiledGraph
from habana_mp._report.data.report import (
    FORMAT,
    VERSION,
    Advice,
    Cast,
    Edge,
    InForce,
    Loss,
    Missed,
    NeverSeen,
    PingPong,
    Rank,
    Recast,
    Report,
    Row,
    Timeline,
    Totals,
    Uneven,
)
from habana_mp._report.data.values import Error, Values

__all__ = [
    "FORMAT",
    "VERSION",
    "Adds",
    "Advice",
    "Cast",
    "CastFrom",
    "CastTo",
    "CompiledCast",
    "CompiledGraph",
    "Data",
    "Edge",
    "Error",
    "InForce",
    "ListName",
    "Loss",
    "Missed",
    "NeverSeen",
    "PingPong",
    "Rank",
    "Recast",
    "Report",
    "Row",
    "Timeline",
    "Totals",
    "Uneven",
    "Values",
    "Why",
]
