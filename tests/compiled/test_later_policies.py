"""What changes the casts of a model after its first compiled call takes effect at the next one: set_policies, edits, convert, other models."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

from habana_mp import hmp

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
LOW = hmp.Policy.from_ops(lower=["linear"], name="low")
HIGH = hmp.Policy.from_ops(fp32=["linear"], name="high")
X = torch.ones(2, 4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    def forward(self, x):
        return self.inner(x)


def in_force(front_end: str):
    return (
        hmp.autocast("cpu", policy=LOW) if front_end == "autocast" else hmp.convert(policy=LOW) and torch.enable_grad()
    )


FRONT_ENDS = pytest.mark.parametrize("front_end", ["convert", "autocast"])
BACKENDS = pytest.mark.parametrize("backend", ["eager", "aot_eager"])


@FRONT_ENDS
@BACKENDS
def test_policies_that_are_made_replaced_and_removed(front_end: str, backend: str) -> None:
    model = Net()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    with in_force(front_end):
        assert compiled(X).dtype == BF16
        hmp.set_policies(model, {"inner": "fp32"})
        assert compiled(X).dtype == FP32
        handle = hmp.set_policies(model, {"inner.1": HIGH})
        assert compiled(X).dtype == FP32
        hmp.set_policies(model, {"inner.1": HIGH.with_edits("+linear:lower")})
        assert compiled(X).dtype == BF16
        handle = hmp.set_policies(model, {"inner.1": HIGH})
        assert compiled(X).dtype == FP32
        handle.remove()
        assert compiled(X).dtype == BF16
        assert torch.equal(compiled(X), model(X))


@FRONT_ENDS
@BACKENDS
def test_models_of_one_class_with_policies_of_their_own(front_end: str, backend: str) -> None:
    plain = Net()
    high, low = copy.deepcopy(plain), copy.deepcopy(plain)
    hmp.set_policies(high, {"inner": HIGH})
    hmp.set_policies(low, {"inner": LOW})
    models = {"plain": (plain, BF16), "high": (high, FP32), "low": (low, BF16), "copy": (copy.deepcopy(high), FP32)}
    with in_force(front_end):
        for order in (models, dict(reversed(models.items()))):
            torch._dynamo.reset()
            compiled = {
                name: torch.compile(model, backend=backend, fullgraph=True) for name, (model, _) in order.items()
            }
            for _ in range(2):
                assert {name: run(X).dtype for name, run in compiled.items()} == {
                    name: dtype for name, (_, dtype) in models.items()
                }


def test_graphs_are_kept_while_the_policies_stay() -> None:
    model, counter = Net(), CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    with hmp.autocast("cpu", policy=LOW):
        for _ in range(2):
            with hmp.set_policies(model, {"inner": HIGH}):
                assert compiled(X).dtype == FP32
            assert compiled(X).dtype == BF16
    assert counter.frame_count <= 3


def test_convert_after_convert() -> None:
    model = Net()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for policy, dtype in (
        (LOW, BF16),
        (HIGH, FP32),
        (LOW.with_low_dtype(FP16), FP16),
        (LOW.with_edits("-linear"), FP32),
    ):
        hmp.convert(policy=policy)
        assert compiled(X).dtype == dtype
