"""hmp.tune with lists of ops in 8 bits among its choices: within the budget and the runs that it announces."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from habana_mp import hmp

EVERY = ("float32", "lower", "weight_int8", "int8")
EIGHT = {"weight_int8", "int8"}


class Deep(nn.Module):
    """A part whose logarithm of a difference needs float32, behind layers of different sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(256, 1024), nn.Linear(1024, 256), nn.Linear(256, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(torch.relu(self.second(torch.relu(self.first(x)))))


def step():
    torch.manual_seed(0)
    model, x = Deep().eval(), torch.randn(16, 256)
    return model, lambda: model(x)


def lists_of(policy: hmp.Policy) -> set[str]:
    return {title for title in EIGHT if policy.lists[title] or policy.limited[title]}


@pytest.mark.parametrize("per", ["op", "module"])
def test_ops_go_into_8_bits_as_far_as_the_budget_has_room(per, tmp_path):
    _, run = step()
    found = hmp.tune(run, 0.03, per=per, formats=EVERY, resume=tmp_path / "runs.json")
    assert found.error <= 0.03
    assert found.runs <= found.most_runs == len({part.part.op for part in found.parts}) // 2 + 52
    eight = [point for point in found.points if lists_of(point.policy)]
    assert eight, str(found)
    for part in found.parts:
        assert part.list not in EIGHT or found.explain(part.part.op)
    found.save(tmp_path / "mine")
    assert lists_of(hmp.Policy.load(tmp_path / "mine")) == lists_of(found.policy)
    assert "8 bits" in str(found) or any(title in str(found) for title in EIGHT)
    assert hmp.tune(run, 0.03, per=per, formats=EVERY, resume=tmp_path / "runs.json").points == found.points


@pytest.mark.parametrize("formats", [EVERY, ("float32", "lower")], ids=["8 bits", "as before"])
def test_a_budget_without_room_for_8_bits(formats):
    _, run = step()
    found = hmp.tune(run, 1e-5, formats=formats)
    assert found.error <= 1e-5
    assert not lists_of(found.policy)


def test_a_step_that_calls_backward_is_refused():
    _, run = step()
    with pytest.raises(ValueError, match="weight_int8 and int8 are for inference, and the step calls backward"):
        hmp.tune(lambda: run().sum().backward() or torch.ones(1), 0.05, formats=EVERY)
