"""The error that a report foretells of a policy is the one that is measured under it (38): for ops that move to the low dtype beside others in it, also
where nothing that they compute from requires a gradient, and for errors that cancel or add up.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from habana_mp import hmp

BALANCED = hmp.Policy.load("balanced")


class Net(nn.Module):
    def __init__(self, forward):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.linear, self.norm = nn.Embedding(50, 32), nn.Linear(32, 32), nn.LayerNorm(32)
        self.scale = nn.Parameter(torch.randn(32))
        self.formula = forward

    def forward(self, x):
        return self.formula(self, x)

    def residual(self, h):
        return h + self.linear(h).tanh()


def off(net, data, policy):
    found = exact = 0.0
    with torch.no_grad():
        for x in data:
            plain = net(x).double()
            with hmp.autocast("cpu", policy=policy):
                found += (net(x).double() - plain).square().sum().item()
            exact += plain.square().sum().item()
    return (found / exact) ** 0.5


def reported(net, data, policy):
    with hmp.autocast("cpu", policy=policy), hmp.report(values=True) as report:
        for x in data:
            report.project(net(x))
    return report


# What moves to the low dtype, and what is computed. Behind each: what was foretold of the measured error before.
LOWERED = {
    "a sum with float32 (0.47)": ("add", lambda net, x: net.residual(x)),
    "a product with float32 (0.84)": ("mul", lambda net, x: x * net.linear(x)),
    "an embedding that a residual reads (0.48)": ("embedding", lambda net, x: net.residual(net.embedding(x))),
    "a norm that a residual reads (0.71)": ("layer_norm", lambda net, x: net.residual(net.norm(x))),
    "a product that a residual reads (0.66)": ("mul", lambda net, x: net.residual(x * net.scale)),
    "no gradient comes to it (0.18)": ("exp", lambda net, x: net.residual(torch.exp(x))),
    "nor to a chain of two": ("exp", lambda net, x: net.residual(torch.exp(x).view(32, 64).t().sqrt())),
    "nor where a product reads it (0.36)": ("exp", lambda net, x: (h := torch.exp(x)) * net.linear(h)),
    "nor where nothing else is low (0)": ("exp", lambda net, x: torch.exp(x) * net.scale),
}


@pytest.mark.parametrize("case", LOWERED)
def test_of_an_op_that_moves_to_the_low_dtype(case):
    op, forward = LOWERED[case]
    net = Net(forward)
    shape = (lambda: torch.randint(0, 50, (64,))) if op == "embedding" else (lambda: torch.randn(64, 32))
    data = [shape() for _ in range(12)]
    edited = BALANCED.with_edits(f"+{op}:lower")
    report = reported(net, data, BALANCED)
    # Of 96 random sums, which are off by 7 % on average.
    assert report.forecast(edited) == pytest.approx(off(net, data, edited), rel=0.35)
    assert report.forecast(BALANCED) == pytest.approx(off(net, data, BALANCED), rel=0.35)


class Recurrent(nn.Module):
    """Its state is a product of float32 and a gate in the low dtype, in each step."""

    def __init__(self, shared):
        super().__init__()
        torch.manual_seed(0)
        cells = [nn.Linear(16, 16) for _ in range(1 if shared else 16)]
        self.cells = nn.ModuleList(cells * 16 if shared else cells)

    def forward(self, x):
        state = torch.ones(x.shape[0], 16)
        for number, cell in enumerate(self.cells):
            state = torch.sigmoid(cell(x[:, number])) * state
        return state


@pytest.mark.parametrize("shared", [False, True], ids=["cells of their own", "one cell"])
def test_a_recurrence_that_moves_to_the_low_dtype(shared):
    """It was foretold to have no error at all: each product was taken to pass on what those before it would round."""
    net, data = Recurrent(shared), [torch.randn(32, 16, 16) for _ in range(4)]
    with hmp.autocast("cpu", policy=BALANCED), hmp.report(values=True) as report:
        for x in data:
            report.project(net(x), k=32)
    edited = BALANCED.with_edits("+mul:lower")
    assert report.forecast(edited) == pytest.approx(off(net, data, edited), rel=0.3)
    assert report.forecast(BALANCED) == pytest.approx(off(net, data, BALANCED), rel=0.3)


class TestSigns:
    """Two layers with the same weights make the same error."""

    @staticmethod
    def net(sign):
        net = Net(lambda net, x: net.linear(x).float() + sign * net.second(x).float())
        net.second = nn.Linear(32, 32)
        net.second.load_state_dict(net.linear.state_dict())
        return net

    @pytest.mark.parametrize("sign", [1, -0.5], ids=["adds up", "cancels in part"])
    def test_outputs(self, sign):
        net, data = self.net(sign), [torch.randn(64, 32) for _ in range(8)]
        assert reported(net, data, BALANCED).errors()["outputs"] == pytest.approx(off(net, data, BALANCED), rel=0.2)

    @pytest.mark.parametrize("sign", [1, -0.5], ids=["adds up", "cancels in part"])
    def test_a_loss(self, sign):
        """Its change has another sign in each batch, so that the means of two ops say nothing of their products."""
        net, data, to = self.net(sign), [torch.randn(64, 32) for _ in range(16)], torch.randn(64, 32)
        with hmp.autocast("cpu", policy=BALANCED), hmp.report(values=True) as report:
            for x in data:
                (net(x) * to).sum().backward()
        with torch.no_grad():
            plain = torch.stack([(net(x) * to).sum() for x in data])
            with hmp.autocast("cpu", policy=BALANCED):
                change = torch.stack([(net(x) * to).sum() for x in data]) - plain
        (error,) = report.errors().values()
        assert error == pytest.approx(change.square().mean().sqrt().item(), rel=0.2)

    def test_of_two_reports(self):
        """Passes of two reports are not taken for one."""
        net, data = self.net(1), [torch.randn(64, 32) for _ in range(8)]
        parts = [reported(net, each, BALANCED) for each in (data[:4], data[4:])]
        merged = hmp.CastReport.merged(parts).errors()["outputs"]
        assert merged == pytest.approx(off(net, data, BALANCED), rel=0.2)
