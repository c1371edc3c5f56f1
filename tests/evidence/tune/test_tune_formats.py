"""hmp.tune with lists of ops in 8 bits among its choices: within the budget and the runs that it announces."""

from __future__ import annotations

import itertools

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
    assert found.runs <= found.most_runs == len({part.part.op for part in found.parts}) // 2 + 60
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


def frozen(model, x):
    model.requires_grad_(False)
    return lambda: model(x)


def of_a_compiled_model(model, x):
    compiled = torch.compile(model, backend="aot_eager")
    with torch.no_grad():
        compiled(x)
    return lambda: compiled(x)


KINDS = {
    "frozen": frozen,
    "no_grad": lambda model, x: torch.no_grad()(lambda: model(x)),
    "inference_mode": lambda model, x: torch.inference_mode()(lambda: model(x)),
    "compiled": of_a_compiled_model,
}


@pytest.mark.parametrize("kind", KINDS)
def test_steps_that_record_no_graph_here_have_8_bits(kind):
    model, _ = step()
    x = torch.randn(16, 256)
    found = hmp.tune(KINDS[kind](model, x), 0.03, formats=EVERY)
    assert any(lists_of(point.policy) for point in found.points), str(found)
    assert all(each.requires_grad == (kind != "frozen") for each in model.parameters())
    assert all(each.grad is None for each in model.parameters())
    assert ("get no gradient" in found.explain("relu")) == ("no_grad" in kind or "inference" in kind)
    with torch.no_grad():
        exact = model(x)
        with hmp.autocast("cpu", policy=found.policy):
            error = (model(x) - exact).norm() / exact.norm()
    assert error.item() == pytest.approx(found.error, rel=1e-3, abs=1e-9)


@pytest.mark.parametrize("budget", [0.05, 0.008])
def test_an_op_is_tried_in_each_of_the_lists_that_the_budget_has_room_for(budget):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)), torch.randn(8, 256)

    @torch.no_grad()
    def run():
        return model(x)

    found = hmp.tune(run, budget, formats=EVERY)
    within = {title for point in found.points if point.error <= budget for title in lists_of(point.policy)}
    assert within == (EIGHT if budget == 0.05 else {"weight_int8"}), str(found)


@pytest.mark.parametrize("gradients", [True, False], ids=["gradients", "no_grad"])
def test_what_is_timed_uses_copies_that_were_made_before(gradients):
    """A call that makes some, as another policy ran before it, is followed by one that makes none."""
    _, run = step()
    made: list[int] = []

    def counted():
        before = hmp.cache.info()
        with torch.set_grad_enabled(gradients and torch.is_grad_enabled()):
            found = run()
        after = hmp.cache.info()
        made.append(after.misses + after.refreshed - before.misses - before.refreshed)
        return found

    found = hmp.tune(counted, 0.05, formats=EVERY)
    assert found.calls == len(made) > found.runs
    rounds = made[-found.calls // 2 :]
    assert max(rounds) > 0
    assert all(one == 0 or other == 0 for one, other in itertools.pairwise(rounds)), rounds


def test_a_step_that_calls_backward_is_refused():
    _, run = step()
    with pytest.raises(ValueError, match="weight_int8 and int8 are for inference, and the step calls backward"):
        hmp.tune(lambda: run().sum().backward() or torch.ones(1), 0.05, formats=EVERY)
