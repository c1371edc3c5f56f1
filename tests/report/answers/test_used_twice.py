"""What the outputs are, and what a loss is, may be read by other ops too: before or after, with gradients or without. Those round it, and the outputs do not."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from habana_mp import hmp

HMP = hmp.Policy.load("hmp")
WIDE_ADD = HMP.with_edits("+add:fp32")  # the other ops cast what it makes back


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.head = nn.Linear(20, 16), nn.Linear(16, 16)

    def forward(self, x):
        return self.linear(x) + 30.0


NET = Net()
DATA = [torch.randn(64, 20) for _ in range(8)]


def without_gradients(y):
    with torch.no_grad():
        return y * y


# How outputs are computed and used. `project` is called with them.
OUTPUTS = {
    "not used again": lambda y, project: project(y),
    "after": lambda y, project: (project(y), y * y),
    "before": lambda y, project: (y * y, project(y)),
    "by a product with itself": lambda y, project: (y @ y.t(), project(y), y @ y.t()),
    "by a head that is no output": lambda y, project: (NET.head(y), project(y)),
    "in no_grad": lambda y, project: (without_gradients(y), project(y)),
    "detached": lambda y, project: (y.detach() * 2, project(y)),
    "a part of it": lambda y, project: (y[:, :4] * 2, project(y)),
    "the output is a part": lambda y, project: (y * y, project(y[:, :4])),
    "the output is in float32": lambda y, project: (y * y, project(y.float())),
    "the output is a copy": lambda y, project: (y * y, project(y.clone())),
    "twice among the outputs": lambda y, project: (y * y, project((y, y))),
    "projected twice": lambda y, project: (project(y), y * y, project(y)),
    "an output that is computed from it": lambda y, project: project((y, NET.head(y))),
    "two calls": lambda y, project: (project(y), project(y * 2)),
}


def off(use, policy):
    found = exact = 0.0
    for x in DATA:
        plain, low = [], []
        with torch.no_grad():
            use(NET(x), lambda outputs, into=plain: into.extend(outputs if isinstance(outputs, tuple) else [outputs]))
            with hmp.autocast("cpu", policy=policy):
                use(NET(x), lambda outputs, into=low: into.extend(outputs if isinstance(outputs, tuple) else [outputs]))
        found += sum((a.double() - b.double()).square().sum().item() for a, b in zip(low, plain, strict=True))
        exact += sum(each.double().square().sum().item() for each in plain)
    return (found / exact) ** 0.5


@pytest.mark.parametrize("used", OUTPUTS)
def test_outputs(used):
    """After ``+add:fp32`` it foretold 24 times the measured error, and no edit."""
    with hmp.report(values=True) as report:
        for x in DATA:
            with hmp.autocast("cpu", policy=HMP):
                OUTPUTS[used](NET(x), report.project)
    assert report.forecast(HMP) == pytest.approx(off(OUTPUTS[used], HMP), rel=0.35)
    assert report.forecast(WIDE_ADD) == pytest.approx(off(OUTPUTS[used], WIDE_ADD), rel=0.35)
    wide = WIDE_ADD.with_edits("+linear:fp32")
    assert report.forecast(wide) == pytest.approx(off(OUTPUTS[used], wide), rel=0.35, abs=3e-6)


# How a loss is used, and what runs its backward pass.
LOSSES = {
    "not used again": lambda loss: loss.backward(),
    "logged": lambda loss: (loss * 3, loss.backward()),
    "times a scale": lambda loss: (loss * 3, (loss.float() * torch.tensor(1024.0)).backward()),
    "torch.autograd.grad": lambda loss: (loss * 3, torch.autograd.grad(loss, NET.linear.weight)),
    "twice": lambda loss: (loss.backward(retain_graph=True), loss * 3, loss.backward()),
}


@pytest.mark.parametrize("used", LOSSES)
def test_a_loss(used):
    def loss_of(x):
        return F.mse_loss(NET.linear(x).float(), x[:, :16]) * 100

    def rms(policy):
        with torch.no_grad():
            plain = torch.stack([loss_of(x) for x in DATA]).double()
            with hmp.autocast("cpu", policy=policy):
                low = torch.stack([loss_of(x).double() for x in DATA])
        return (low - plain).square().mean().sqrt().item()

    with hmp.report(values=True) as report:
        for x in DATA:
            with hmp.autocast("cpu", policy=HMP):
                LOSSES[used](loss_of(x))
    NET.zero_grad()
    edited = HMP.with_edits("+mul:fp32")
    assert report.forecast(HMP) == pytest.approx(rms(HMP), rel=0.5)
    assert report.forecast(edited) == pytest.approx(rms(edited), rel=0.5)
