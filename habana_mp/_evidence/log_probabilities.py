"""``LogProbabilities``: how far the log-probabilities of two runs are apart, token by token, as trainers by reinforcement learning look at it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from habana_mp._show.short import Short
from habana_mp._show.units import counted
from habana_mp._show.units import share as percent

RATIO = 1.2  # beyond which PPO clips by default


@dataclass(frozen=True, repr=False)
class LogProbabilities(Short):
    """The log-probabilities of run b beside those of run a.

    A ratio is the probability of a token in run b divided by that in run a, or its inverse where that is larger.

    Attributes:
        tokens: how many tokens both runs have.
        nats_per_token: the mean of the absolute differences of the log-probabilities, in nats.
        largest: the largest absolute difference, in nats; infinite if one run alone has a number that is not finite.
        differences: run b minus run a for each token, in nats.

    Example:
        >>> found = hmp.compare(lambda: {"log_probabilities": model(x).log_softmax(-1)[:, 0]}, None, "hmp")
        >>> found.log_probabilities.beyond(1.2)
        0.0
    """

    tokens: int
    nats_per_token: float
    largest: float
    differences: tuple[float, ...]

    @classmethod
    def of(cls, a: torch.Tensor, b: torch.Tensor) -> LogProbabilities:
        """Of the numbers of two runs, float32 of shape [tokens]."""
        pairs = zip(a.tolist(), b.tolist(), strict=True)
        differences = tuple(0.0 if x == y else y - x if math.isfinite(y - x) else math.inf for x, y in pairs)
        sizes = [abs(each) for each in differences]
        return cls(len(sizes), sum(sizes) / max(1, len(sizes)), max(sizes, default=0.0), differences)

    @property
    def largest_ratio(self) -> float:
        """The largest ratio of all tokens: 1 if all are equal."""
        return math.exp(self.largest) if self.largest < 700 else math.inf

    def beyond(self, ratio: float = RATIO) -> float:
        """Return the share of tokens, 0 to 1, whose ratio is above ``ratio``.

        Raises:
            ValueError: ``ratio`` is below 1.
        """
        if not ratio >= 1:
            raise ValueError(f"ratio must be 1 or more, not {ratio!r}")
        limit = math.log(ratio)
        return sum(abs(each) > limit for each in self.differences) / max(1, self.tokens)

    def _line(self) -> str:
        return (
            f"{self.nats_per_token:.2g} nats per token over {counted(self.tokens, 'token')}, largest ratio {self.largest_ratio:.4g}, "
            f"{percent(self.beyond(), 1.0)} of tokens beyond {RATIO}"
        )

    def __str__(self) -> str:
        return self._line()
