"""`habana_frameworks.torch.hpu.metrics`: how often Gaudi's compiler ran and what went to the CPU. Nothing of the kind happens here: all counts are 0."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

__all__ = ["metric_global", "metric_localcontext"]

_STATS: dict[str, dict[str, Any]] = {
    "cpu_fallback": {"TotalNumber": 0, "FallbackOps": ""},
    "graph_compilation": {"TotalNumber": 0, "TotalTime": 0, "AvgTime": 0},
    "recipe_cache": {"TotalHit": 0, "TotalMiss": 0, "RecipeHit": "", "RecipeMiss": ""},
}


class Metric(NamedTuple):
    """A count with its name, such as "graph_compilation"."""

    name: str

    def stats(self) -> list[tuple[str, Any]]:
        """Pairs of a label and a figure; the first is the number of times."""
        return [*_STATS.get(self.name, {"TotalNumber": 0}).items()]

    def reset(self) -> None:
        """Do nothing."""


def metric_global(name: str) -> Metric:
    """The count since the start."""
    return Metric(name)


@contextlib.contextmanager
def metric_localcontext(name: str) -> Iterator[Metric]:
    """The count inside a ``with`` statement."""
    yield Metric(name)
