"""A graph of ``torch.compile``: what a report knows of code whose ops it does not see."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import field

from habana_mp._report.data.base import Adds, CastTo, Count, Data


class CompiledCast(Data, frozen=True):
    """In each run of the graph."""

    op: Annotated[str, "The op that the cast is for."]
    backward: Annotated[bool, "Whether it is in the backward pass of the graph."]
    from_: Annotated[CastTo, "The dtype before the cast."] = field(name="from")
    to: Annotated[CastTo, "The dtype after it."]
    rule: Annotated[str, 'The rule of the op, and the line of the list that sets it; "" if the policy has none.']
    count: Annotated[Count, Adds.LARGEST, "How many such casts the graph has."]


class CompiledGraph(Data, frozen=True):
    graph: Annotated[str, 'The number that torch has for the graph, "0/1".']
    rounds: Annotated[
        Literal["exact", "fused", "unknown"],
        "How it rounds, by the policies; unknown if no policy of habana_mp was in force, or another backend than Inductor compiled it.",
    ]
    calls: Annotated[Count, "How often it ran."]
    casts: Annotated[list[CompiledCast], "Its casts."]
    unrounded: Annotated[Count, Adds.LARGEST, "How many roundings Inductor may have left out, under fused."]
