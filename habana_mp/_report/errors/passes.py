"""What rows change losses and outputs by, with signs, and what their changes have in common."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import get_args

import torch

from habana_mp._report.data import Row
from habana_mp._report.formats import FORMATS
from habana_mp._report.numbers import Run

_MANY_PASSES = 8  # with fewer, nearly all products are chance
_SURE = 2.5  # times what chance makes: two ops whose errors have as much in common do not have it by chance


class Weights:
    """Which part of its changes each row has, by the run in which they were measured: the root of a part of their squares. All of those as it ran, but
    for rows that have moved to another dtype.
    """

    def __init__(self, moved: Collection[int]) -> None:
        self.of: dict[Run, dict[int, float]] = {"ran": dict.fromkeys(moved, 0.0)}

    def add(self, number: int, run: Run, part: float) -> None:
        if part > 0:
            self.of.setdefault(run, {})[number] = math.sqrt(part)


class Passes:
    """What rows change a loss by in each backward pass, or random sums of the outputs, with signs: the products of each two of them, summed over passes.

    With signs at random the square of such a sum would be ``chance`` on average. A pair that is well beyond this counts, and all others
    together as far as their sum in the run is more than chance: a choice of rows by what they leave would find noise.
    """

    def __init__(self, rows: list[Row], loss: str | None) -> None:
        found = {run: [_changes(row, loss, run) for row in rows] for run in get_args(Run)}
        passes = max((len(each) for changes in found.values() for each in changes), default=0)
        used = [number for number in range(len(rows)) if any(any(changes[number]) for changes in found.values())]
        self._position = {number: position for position, number in enumerate(used)} if passes >= _MANY_PASSES else {}
        self._changes: dict[Run, torch.Tensor] = {}  # rows, passes
        for run, changes in found.items():
            padded = [[*changes[number], *[0.0] * (passes - len(changes[number]))] for number in self._position]
            self._changes[run] = torch.tensor(padded, dtype=torch.float64).reshape(len(padded), passes)
        self._products: dict[tuple[Run, Run], torch.Tensor] = {}
        self._counts = self._more_than_chance()

    def _more_than_chance(self) -> torch.Tensor:
        """How far the product of each two rows counts, from 0 to 1."""
        ran, low = self._changes["ran"], self._changes["low"]
        moves = ran.any(1, keepdim=True)
        own = torch.where(moves, ran, low)
        own = own / (own.square().mean().sqrt() or 1.0)  # their fourth powers may be beyond a float
        products, chance = own @ own.T, own.square() @ own.square().T
        ratio = (products.square() / (chance * _SURE**2)).nan_to_num(0.0)
        sure = (ratio.square() / (1 + ratio.square())).fill_diagonal_(0.0)
        others = ((1 - sure) * (moves & moves.T if moves.any() else True)).fill_diagonal_(0.0)
        found, by_chance = float((others * products).sum()), 2 * float((others.square() * chance).sum())
        rest = found * found / (found * found + by_chance) if found else 0.0
        return (sure + (1 - sure) * rest).fill_diagonal_(0.0)

    def together(self, weights: Weights) -> float:
        """The sum over pairs of the rows in these runs."""
        own = {}
        for run, of in weights.of.items():
            parts = [1.0 if run == "ran" else 0.0] * len(self._position)
            for number in of.keys() & self._position.keys():
                parts[self._position[number]] = of[number]
            own[run] = torch.tensor(parts, dtype=torch.float64)
        found = sum(float(own[a] @ self._product(a, b) @ own[b]) for a in own for b in own)
        return found if math.isfinite(found) else 0.0  # of numbers whose squares are beyond a float

    def _product(self, a: Run, b: Run) -> torch.Tensor:
        if (b, a) in self._products:
            return self._products[b, a].T
        if (a, b) not in self._products:
            self._products[a, b] = self._changes[a] @ self._changes[b].T * self._counts
        return self._products[a, b]


def _changes(row: Row, loss: str | None, run: Run) -> list[float]:
    values = row.measured
    if run in FORMATS:
        in_format = values.in_format(run)
        if in_format is None:
            return []
        if loss is None:
            return in_format.passes
        return next((each.passes for each in in_format.losses if each.loss == loss), [])
    passes = values.passes if loss is None else next((each.passes for each in values.losses if each.loss == loss), None)
    return getattr(passes, run) if passes else []
