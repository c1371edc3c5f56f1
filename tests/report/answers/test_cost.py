"""What an edit says of its casts and its time."""

from __future__ import annotations

import pytest

from habana_mp._report.edits.edits import _cost
from habana_mp._report.edits.simulated import Effect


@pytest.mark.parametrize(
    ("casts", "seconds", "said"),
    [
        (12, 0.04, "costs about 4.0 % of a step of inference, 12 casts more"),
        (0, -0.2, "saves about 20 % of a step of inference, no cast more"),
        (1, 0.01, "costs no time that can be measured, 1 cast more"),
        (-2, -0.01, "saves less time than can be measured, 2 casts fewer"),
        (0, -1.0, "costs no time that can be measured, no cast more"),
        (0, 0.0, "costs no time, no cast more"),
    ],
    ids=["costs", "saves", "costs little", "saves little", "saves all, which none does", "nothing"],
)
def test_cost(casts: int, seconds: float, said: str) -> None:
    assert _cost(Effect(casts, seconds), 1.0, "a step of inference") == said
