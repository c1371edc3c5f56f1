"""Which steps of a training a report counts: some are passed over, some run with it open and are thrown away, and then it counts."""

from __future__ import annotations

import habana_mp._core as _core
from habana_mp._show.units import whole


class Schedule:
    """``phase`` is "wait", "warmup", "active" or "done"; ``step`` ends a step and moves it on. ``seconds`` are those of the active steps."""

    def __init__(self, wait: int, warmup: int, active: int | None) -> None:
        for name, count in (("wait", wait), ("warmup", warmup)):
            if (whole(count) or 0) < 0 or whole(count) is None:
                raise ValueError(f"{name} must be a number of steps, 0 or more, not {count!r}")
        if active is not None and (whole(active) or 0) < 1:
            raise ValueError(f"active must be a number of steps, 1 or more, or None for all, not {active!r}")
        self._ends = wait, wait + warmup, None if active is None else wait + warmup + active
        self._done = 0
        self._began = 0.0
        self.seconds: list[float] = []

    @property
    def phase(self) -> str:
        waited, warm, end = self._ends
        if self._done < waited:
            return "wait"
        if self._done < warm:
            return "warmup"
        return "active" if end is None or self._done < end else "done"

    @property
    def is_set(self) -> bool:
        """Whether a report that counts nothing may wait for its steps."""
        return self._ends[1] > 0

    def begin(self) -> None:
        """A step begins."""
        self._began = _core.step_clock()

    def step(self) -> None:
        if self.phase == "active":
            self.seconds.append(_core.step_clock() - self._began)
        self._done += 1

    @property
    def missing(self) -> str:
        """Why nothing was counted."""
        return f"nothing has been counted: {self._done} steps ended in the block, and counting begins after {self._ends[1]} (wait and warmup)"
