"""What ops do that no list names: tensors without dimensions change no dtype, and a module that calls an op twice makes no circle of its rows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from habana_mp import hmp

torch.manual_seed(0)
LINEAR = nn.Linear(16, 16)
P = nn.Parameter(torch.randn(16) * 0.1)
BATCHES = torch.randn(64, 64, 16, generator=torch.Generator().manual_seed(0))


def bounded(h):
    return 2 * torch.tanh(h / 2)


STEPS = {
    "a sum of a parameter is added": lambda h: h.exp() + P.sum(),
    "a sum of a parameter is multiplied": lambda h: h.exp() * P.sum(),
    "an element of a parameter is added": lambda h: h.exp() + P[:1],
    "exp of two activations": lambda h: (e := bounded(h)).exp() * (0.1 * e).exp(),
    "exp of a parameter and of an activation": lambda h: bounded(h).exp() * P.exp(),
    "a residual of one op": lambda h: (e := torch.sin(h) + h) + torch.sin(e),
}


def loss(step, x):
    return step(LINEAR(x)).pow(2).sum(-1).mean()


def off(step, policy) -> float:
    with torch.no_grad():
        exact = torch.stack([loss(step, x) for x in BATCHES])
        with hmp.autocast("cpu", policy=policy):
            found = torch.stack([loss(step, x) for x in BATCHES]).float()
    return (found - exact).double().square().mean().sqrt().item()


def report_of(step, policy) -> hmp.CastReport:
    with hmp.autocast("cpu", policy=policy), hmp.report(values=True) as report:
        for x in BATCHES:
            loss(step, x).backward()
    return report


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("start", ["hmp", "balanced", "torch-cpu"])
def test_presets_are_foretold(name, start):
    report = report_of(STEPS[name], start)
    foretold, (error,) = report.presets(), report.errors().values()
    assert foretold[start] == pytest.approx(error, rel=0.05), "the policy in force changes nothing"
    for preset in ("hmp", "balanced", "torch-cpu", "hpu-autocast"):
        assert foretold[preset] == pytest.approx(off(STEPS[name], preset), rel=0.3), preset


@pytest.mark.parametrize("name", STEPS)
def test_edits_are_foretold(name):
    policy, texts = hmp.Policy.load("hmp"), []
    before = off(STEPS[name], policy)
    for edit in report_of(STEPS[name], policy).edits():
        texts.append(edit.text)
        after = off(STEPS[name], policy.with_edits(*texts))
        assert edit.error_after == pytest.approx(after, rel=0.3, abs=0.01 * before)
