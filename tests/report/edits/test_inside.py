"""Ops that are looked at op by op: what an edit of an op inside of them leaves."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp
from habana_mp._report.edits.simulated import Simulation
from habana_mp._report.errors.objective import Objective
from habana_mp._report.form import report_of


class Recurrent(nn.Module):
    """Torch runs a gru and an rnn in a low dtype by their linear layers."""

    def __init__(self, layer):
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(16), layer(16, 16, batch_first=True)

    def forward(self, x):
        return self.layer(self.norm(x))[0]


class Attention(nn.Module):
    """With a mask that needs gradients it is run op by op."""

    def __init__(self):
        super().__init__()
        self.qkv, self.mask = nn.Linear(16, 48), nn.Parameter(torch.randn(1, 2, 8, 8))

    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)


LINEAR = hmp.Policy.from_ops(lower=["linear", "layer_norm"])
PRODUCTS = hmp.Policy.from_ops(lower=["linear", "matmul"], rest="first_input")
CASES = {
    "gru": (lambda: Recurrent(nn.GRU), LINEAR),
    "rnn": (lambda: Recurrent(nn.RNN), LINEAR),
    "attention, its matmul stays low": (Attention, PRODUCTS),
}


@pytest.mark.parametrize("name", CASES)
def test_an_edit_of_linear_is_foretold(name):
    make, policy = CASES[name]
    torch.manual_seed(0)
    model, batches = make(), [torch.randn(32, 8, 16) for _ in range(4)]

    def off(policy):
        found, sizes = 0.0, 0.0
        for x in batches:
            exact = model(x)
            with hmp.autocast("cpu", policy=policy):
                found += (model(x).double() - exact.double()).square().sum().item()
            sizes += exact.double().square().sum().item()
        return math.sqrt(found / sizes)

    with hmp.report(values=True) as report:
        for seed, x in enumerate(batches):
            with hmp.autocast("cpu", policy=policy):
                out = model(x)
            report.project(out, k=32, seed=seed)
    data = report_of(report.to_dict())
    edited = policy.with_edits("+linear:fp32")
    effect = Simulation(data).under(edited)
    (foretold,) = Objective(data).errors(effect.left, effect.low).values()
    before, after = off(policy), off(edited)
    assert Objective(data).error() == pytest.approx(before, rel=0.2)
    assert foretold == pytest.approx(after, rel=0.2)
    assert foretold < 0.95 * Objective(data).error()
