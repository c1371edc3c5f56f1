"""The losses of a report, and the choices of ops, whose margins are measured like a loss."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from habana_mp._report.data.base import Adds, Count, Data, Size


class Margins(Data, frozen=True):
    bin: Annotated[
        int, Meta(ge=-160, le=160), Adds.KEY, "They lie from 2^(bin / 4) to 2^((bin + 1) / 4). -160 has those of 0."
    ]
    count: Annotated[Count, "How many."]


class Choice(Data, frozen=True):
    """An op that chooses by its numbers, such as experts by topk, with gradients on."""

    row: Annotated[Count, Adds.FIRST, "The number of its row."]
    choices: Annotated[Count, "How many choices it made that were followed to a loss or to outputs."]
    seen: Annotated[Count, "How many choices it made."]
    margins: Annotated[
        list[Margins],
        "The margins of the choices: the differences of the last number that is chosen and the next one, by the size of that number if no number is negative.",
    ]
    measured: Annotated[Count, "How many of the narrowest margins were measured, in all backward passes together."]
    otherwise: Annotated[Count, "How many choices were made otherwise in a second run, to see what they are worth."]


class Loss(Data, frozen=True):
    loss: Annotated[
        str, 'The line of your code that called backward; "" if it is not known. Of a choice, its op, module and line.'
    ]
    passes: Annotated[Count, "How many backward passes of it reached ops that were measured."]
    choice: Annotated[
        Choice | UnsetType, "It is no loss: its backward passes begin at random sums of margins of choices."
    ] = UNSET


class ChoicesWorth(Data, frozen=True):
    loss: Annotated[str | None, "The line of the loss; null for the outputs."]
    squares: Annotated[Size, "The squares of what it differs by, where some choices are made otherwise."]
    otherwise: Annotated[Count, "How many choices these are."]
