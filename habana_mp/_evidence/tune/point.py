"""``Point``: a policy that ran in a search, with its error and its time."""

from __future__ import annotations

from dataclasses import dataclass

from habana_mp._policy.policy import Policy
from habana_mp._show.short import Short
from habana_mp._show.units import time


@dataclass(frozen=True, repr=False)
class Point(Short):
    """A policy that ran.

    Attributes:
        name: the name of the point.
        policy: the policy.
        error: the measured error.
        seconds: the measured time, the best of ``timed`` runs.
        timed: how many runs were timed.
        memory: the measured peak of the accelerator's memory in bytes; None on a CPU.
        predicted_error: the error predicted before the run; None if there is no prediction.
        predicted_seconds: the time predicted before the run; None if there is no prediction.
        in_float32: how many parts run in float32; None for edits of ``start``.
        result_bytes: the size of the results of all parts in bytes; None for edits of ``start``.

    Example:
        >>> found = hmp.tune(lambda: model(x), 1e-2, cost="numbers")
        >>> for point in found.front:
        ...     print(point.name, point.error, point.seconds)
    """

    name: str
    policy: Policy
    error: float
    seconds: float
    timed: int
    memory: int | None
    predicted_error: float | None = None
    predicted_seconds: float | None = None
    in_float32: int | None = None
    result_bytes: int | None = None

    def _line(self) -> str:
        return f"{self.name}, error {self.error:.2g}, {time(self.seconds)}"
