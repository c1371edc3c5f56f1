"""Checkpoints: what is computed again in the backward pass is cast as it was in the forward pass."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH = 128
FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.seen = []

    def forward(self, x):
        y = self.second(torch.dropout(self.norm(self.first(x)).relu(), 0.2, train=self.training))
        self.seen.append(y.dtype)
        return x + y


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
def test_gradients_are_those_without_checkpoints(accelerator, front_end, reentrant, dtype):
    plain = nn.Sequential(*(Block() for _ in range(3))).to(accelerator)
    saved = copy.deepcopy(plain)
    x = torch.randn(16, WIDTH, device=accelerator, requires_grad=True)
    region = front_end(dtype)
    results = []
    for model in (plain, saved):
        torch.manual_seed(1)
        with region():
            y = x
            for block in model:
                y = block(y) if model is plain else checkpoint(block, y, use_reentrant=reentrant)
        (y.float().square().mean() * 2**10).backward()
        results.append([y, x.grad, *(p.grad for p in model.parameters())])
        x.grad = None
    for found, expected in zip(results[1], results[0]):
        torch.testing.assert_close(found, expected, rtol=2**-7, atol=2**-7)
        assert found.dtype == expected.dtype
    assert [{*block.seen} for block in saved] == [{dtype}] * 3


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
def test_a_step_between_the_forward_pass_and_the_next(accelerator, front_end, reentrant):
    """Weights change at each step, and each step sees the new ones, in both passes."""
    plain = Block().eval().to(accelerator)
    saved = copy.deepcopy(plain)
    region = front_end(BF16)
    models = [(model, torch.optim.SGD(model.parameters(), lr=0.1)) for model in (plain, saved)]
    for _ in range(4):
        x = torch.randn(16, WIDTH, device=accelerator, requires_grad=True)
        losses = []
        for model, optimizer in models:
            with region():
                y = model(x) if model is plain else checkpoint(model, x, use_reentrant=reentrant)
            loss = y.float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss)
        torch.testing.assert_close(losses[1], losses[0], rtol=2**-7, atol=2**-7)
    for p, q in zip(plain.parameters(), saved.parameters()):
        torch.testing.assert_close(q, p, rtol=2**-7, atol=2**-7)
