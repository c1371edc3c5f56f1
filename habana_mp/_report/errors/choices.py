"""What follows from ops that choose otherwise than in float32, such as experts by topk: no gradient tells it.

A choice flips if the error of its margin is larger than the margin: how many do is known from the margins and the size of their errors. What a flip
is worth was measured by making some choices otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch

from habana_mp._report.data import Choice, Loss, Report
from habana_mp._report.numbers import OUTPUTS

_ZERO = -160  # the bin of margins that are 0
_PER_OCTAVE = 4  # bins
_MOST = 6  # choices that are looked at: the others follow them
_FEW = 32  # margins: as many give their density within a fifth
_NODES = torch.linspace(-3.5, 3.5, 15, dtype=torch.float64)
_WEIGHTS = torch.softmax(-_NODES.square() / 2, 0)  # of a normal distribution
_POSITIVE = torch.linspace(0.05, 3.95, 40, dtype=torch.float64)
_HALF = torch.softmax(-_POSITIVE.square() / 2, 0) / 2


class _Margins:
    """Of one choice."""

    def __init__(self, loss: Loss, choice: Choice) -> None:
        self.key, self.row = loss.loss, choice.row
        self._per_pass = choice.measured / loss.passes
        bins = sorted((each.bin, each.count) for each in choice.margins)
        self._margins = torch.tensor(
            [0.0 if each == _ZERO else 2.0 ** ((each + 0.5) / _PER_OCTAVE) for each, _ in bins], dtype=torch.float64
        )
        self._counts = torch.tensor([float(count) for _, count in bins], dtype=torch.float64)
        self._whole = max(1.0, choice.seen / max(1, choice.choices))  # those that were not followed are as these
        narrow = torch.cumsum(self._counts, 0) < _FEW
        # Numbers of a low dtype are often equal: their margins are not dense, and errors flip half of those that are 0.
        self._few = float(self._margins[narrow].max()) if narrow.any() and self._margins[0] else 0.0

    def deviation(self, error: float) -> float:
        """Of one margin, of the error of their random sums."""
        return error / math.sqrt(self._per_pass)

    def flips(self, error: float, now: float) -> float:
        """How many choices are others than in float32, where the random sums of margins are off by ``error``. ``now``: by what they were off when
        the margins were seen. What is off no more spreads the margins, and few of them stand for all that lie near.
        """
        deviation, spread = self.deviation(error), self.deviation(math.sqrt(max(0.0, now**2 - error**2)))
        if not deviation:
            return 0.0
        spread = max(spread, self._few)
        margins = self._margins[:, None]
        if spread < deviation:
            parts = _beyond((margins + spread * _NODES).abs() / deviation) @ _WEIGHTS
        else:
            parts = (
                _beyond((margins - deviation * _POSITIVE) / spread)
                - _beyond((margins + deviation * _POSITIVE) / spread)
            ) @ _HALF
        return float(self._counts @ parts) * self._whole


def _beyond(deviations: torch.Tensor) -> torch.Tensor:
    """Which part of a normal distribution is."""
    part: torch.Tensor = torch.special.erfc(deviations / math.sqrt(2)) / 2
    return part


class Choices:
    """All of a report. ``error_of`` gives the error of the random sums of margins of one of them."""

    def __init__(self, report: Report, error_of: Callable[[str], float]) -> None:
        worth = [each for each in report.choices_worth or [] if each.otherwise]
        self._worth = {OUTPUTS if each.loss is None else each.loss: each.squares / each.otherwise for each in worth}
        chosen = [(loss, loss.choice) for loss in report.losses or [] if loss.choice and worth]
        found = [
            _Margins(loss, choice) for loss, choice in chosen if choice.measured and choice.margins and loss.passes
        ]
        self._now = {each.key: error_of(each.key) for each in found}
        flips = {each.key: each.flips(self._now[each.key], self._now[each.key]) for each in found}
        self.flips_of_rows: dict[int, float] = {}  # as they ran, by the number of the row
        for each in found:
            self.flips_of_rows[each.row] = self.flips_of_rows.get(each.row, 0.0) + flips[each.key]
        self._chosen = sorted(found, key=lambda each: -flips[each.key])[:_MOST]
        some, whole = sum(flips[each.key] for each in self._chosen), sum(flips.values())
        self._others = whole / some if some else 1.0

    def squares(self, error_of: Callable[[str], float]) -> Mapping[str, float]:
        """What flips add to the squares of the error of each loss that they reach, and of the outputs."""
        flips = self._others * sum(each.flips(error_of(each.key), self._now[each.key]) for each in self._chosen)
        return {loss: flips * worth for loss, worth in self._worth.items()}
