"""hmp.tune leaves everything as it was, whatever happens in its runs, and refuses what it cannot search."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from planted_faults import Model, X
from torch import nn

import habana_mp._core as _core
from habana_mp import hmp


class Training:
    """A step that changes all that a step may: weights, buffers, gradients, an optimizer, random numbers. It raises in one of its runs."""

    def __init__(self, raises_in: int = 0, error: type[BaseException] = ZeroDivisionError) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 0.1)
        self.calls = self.raises_in = 0
        self()
        self.calls, self.raises_in, self.error = 0, raises_in, error

    def __call__(self) -> torch.Tensor:
        self.calls += 1
        random.random()
        loss = self.model(X + torch.randn(64, 16)).square().mean()
        loss.backward()
        self.optimizer.step()
        if self.calls == self.raises_in:
            raise self.error
        return loss

    def state(self) -> list:
        gradients = [p.grad for p in self.model.parameters()]
        values = self.model.state_dict(), self.optimizer.state_dict(), gradients, torch.get_rng_state()
        return [copy.deepcopy(values), random.getstate(), [id(each) for each in gradients], self.model.training]


def same(a: list, b: list) -> bool:
    leaves = [torch.utils._pytree.tree_leaves(each) for each in (a, b)]
    return len(leaves[0]) == len(leaves[1]) and all(
        torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y for x, y in zip(*leaves, strict=True)
    )


class Caches(nn.Module):
    """Has room for one token, as a cache of keys and values has for so many."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.register_buffer("keys", torch.zeros(1, 16))
        self.register_buffer("length", torch.zeros((), dtype=torch.long))
        self.kept: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        self.keys[self.length] = y.detach()  # raises the second time
        self.length += 1
        self.kept.append(x)
        assert len(self.kept) == 1
        return y


@pytest.mark.parametrize("gradients", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_each_call_of_a_run_begins_from_the_same_state(gradients):
    with torch.no_grad():
        model, x = Caches(), X[0]
    found = hmp.tune(lambda: gradients()(model)(x), 0.1)
    assert found.calls > found.runs
    assert (model.length, model.kept) == (0, [])


@pytest.mark.parametrize("metric", ["results", "gradients"])
@pytest.mark.parametrize("cost", ["numbers", "seconds"])
def test_state_is_put_back(cost, metric):
    step = Training()
    before = step.state()
    found = hmp.tune(step, 1e-2, cost=cost, metric=metric, check=step)
    assert step.calls == found.runs
    assert same(before, step.state())


@pytest.mark.parametrize("error", [ZeroDivisionError, ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("run", ["first", "second", "fifth", "last"])
def test_state_is_put_back_where_a_run_raises(run, error):
    whole = Training()
    last = hmp.tune(whole, 1e-2, cost="numbers").runs
    step = Training({"first": 1, "second": 2, "fifth": 5, "last": last}[run], error)
    before = step.state()
    with pytest.raises(error):
        hmp.tune(step, 1e-2, cost="numbers")
    assert step.calls == step.raises_in
    assert same(before, step.state())
    assert _core.probe_name() == ""
    assert not _core.reporting()
    assert not hmp.is_converted()
    assert hmp.tune(step, 1e-2, cost="numbers").runs == last


def test_each_run_begins_from_the_same_state():
    step, seen = Training(), []

    def noting():
        seen.append((step.model[0].weight[0, 0].item(), torch.initial_seed(), step.model[1].running_mean[0].item()))
        return step()

    hmp.tune(noting, 1e-2, cost="numbers", seed=7)
    assert len({*seen}) == 1
    assert seen[0][1] == 7


def test_what_the_metric_raises_goes_on_and_state_is_put_back():
    step = Training()
    before = step.state()

    def metric(exact, low):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        hmp.tune(step, 1e-2, metric=metric)
    assert same(before, step.state())


def step():
    return Model()(X)


NO_OP = "no op of the step computes in bfloat16 under balanced, so there is nothing to tune. tune does not see ops inside torch.compile or in other threads"
NO_NUMBERS = "the step returns no numbers: return its outputs or its loss"


class Counting:
    """Its results are others each time, whatever is put back."""

    calls = 0.0

    def __call__(self) -> torch.Tensor:
        self.calls += 1.0
        return step() + self.calls


NOT_FINITE = "the step returns numbers that are not finite in float32. To find the op, call find_nonfinite(step)"


@pytest.mark.parametrize(
    ("refused", "options", "said"),
    [
        (lambda: None, {}, NO_NUMBERS),
        (lambda: "text", {}, NO_NUMBERS),
        (lambda: {"logits": None}, {}, NO_NUMBERS),
        (step, {"metric": "gradients"}, "the step leaves no gradients: call backward() in it"),
        (lambda: step() * float("nan"), {}, NOT_FINITE),
        (lambda: step() / 0, {}, NOT_FINITE),
        (lambda: X, {}, NO_OP),
        (lambda: 3, {}, NO_OP),
        (lambda: torch.arange(4) * 2, {}, NO_OP),
        (lambda: torch.empty(0), {}, NO_OP),
    ],
    ids=[
        "none",
        "text",
        "empty",
        "no gradients",
        "nan",
        "infinite",
        "no op",
        "a number",
        "integers",
        "no element",
    ],
)
def test_steps_that_cannot_be_searched(refused, options, said):
    with pytest.raises(ValueError) as error:
        hmp.tune(refused, **{"budget": 1e-2, **options})
    assert str(error.value) == said


def test_a_step_that_float32_does_not_repeat_is_refused():
    kept = r"no policy stays within the budget of 1e-06: with all ops in float32 the error is \S+\. The step casts by itself, changes tensors that are in no module, or draws "
    with pytest.raises(ValueError, match=f"^{kept}other random numbers each time$"):
        hmp.tune(Counting(), 1e-6)


BUDGET_IS = "budget must be the largest accepted error, a number above 0 and below 1, not "
METRIC_IS = 'metric must be "results", "gradients" or a function of two results, not '


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"step": 3}, TypeError, "step must be a function without arguments, not 3"),
        ({"step": None}, TypeError, "step must be a function without arguments, not None"),
        ({"check": 3}, TypeError, "check must be a function without arguments, not 3"),
        ({"budget": 0}, ValueError, f"{BUDGET_IS}0"),
        ({"budget": -1e-3}, ValueError, f"{BUDGET_IS}-0.001"),
        ({"budget": float("nan")}, ValueError, f"{BUDGET_IS}nan"),
        ({"budget": float("inf")}, ValueError, f"{BUDGET_IS}inf"),
        ({"budget": "1e-2"}, ValueError, f"{BUDGET_IS}'1e-2'"),
        ({"budget": True}, ValueError, f"{BUDGET_IS}True"),
        ({"metric": "loss"}, ValueError, f"{METRIC_IS}'loss'"),
        ({"metric": []}, ValueError, f"{METRIC_IS}[]"),
        ({"metric": None}, ValueError, f"{METRIC_IS}None"),
        ({"per": "layer"}, ValueError, "per must be 'op' or 'module', not 'layer'"),
        ({"others": "fp32"}, ValueError, "others must be 'lower' or 'start', not 'fp32'"),
        ({"cost": "bytes"}, ValueError, "cost must be 'seconds' or 'numbers', not 'bytes'"),
        ({"seed": 1.0}, TypeError, "seed must be a whole number, not 1.0"),
        ({"seed": True}, TypeError, "seed must be a whole number, not True"),
        ({"start": 3}, TypeError, "Policy.load takes a name, a path or a text, not 3"),
    ],
    ids=lambda value: " ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_arguments_that_are_refused(arguments, error, said):
    calls = []
    with pytest.raises(error) as raised:
        hmp.tune(**{"step": lambda: calls.append(1), "budget": 1e-2, **arguments})
    assert str(raised.value) == said
    assert not calls


def test_a_start_that_is_no_policy():
    with pytest.raises(ValueError, match=r"^Unknown policy 'no-such'. Accepted are a preset"):
        hmp.tune(step, 1e-2, start="no-such")


def test_inside_of_what_measures_it_is_refused():
    with (
        hmp.report(values=True),
        pytest.raises(RuntimeError, match=r"^tune cannot run inside hmp.report.values=True.$"),
    ):
        hmp.tune(step, 1e-2)
    with pytest.raises(RuntimeError, match=r"^tune cannot run inside compare$"):
        hmp.compare(lambda: hmp.tune(step, 1e-2), None, "hmp")
    with pytest.raises(RuntimeError, match=r"^tune is already running\."):
        hmp.tune(lambda: hmp.tune(step, 1e-2) and step(), 1e-2)
    with pytest.raises(RuntimeError, match=r"^compare cannot run inside tune$"):
        hmp.tune(lambda: hmp.compare(step, None, "hmp") and step(), 1e-2)
    assert hmp.tune(step, 0.5, cost="numbers").error <= 0.5


class NoBackward(torch.autograd.Function):
    """As cuDNN's recurrent layers in eval mode: the outputs require gradients, and there are none."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("can only be called in training mode")


class NoMemory(NoBackward):
    @staticmethod
    def backward(ctx, gradient):
        raise torch.OutOfMemoryError("no memory")


def test_a_step_whose_backward_pass_has_no_memory_raises():
    model = Model()
    with pytest.raises(torch.OutOfMemoryError, match="no memory"):
        hmp.tune(lambda: NoMemory.apply(model(X)), budget=0.02)


def test_a_step_without_a_backward_pass_is_tuned_as_under_no_grad():
    model = Model().eval()
    found = hmp.tune(lambda: NoBackward.apply(model(X)), budget=0.02)
    with torch.no_grad():
        again = hmp.tune(lambda: model(X), budget=0.02)
    assert found.error == pytest.approx(again.error, rel=1e-3)
    assert "get no gradient" in str(found)
