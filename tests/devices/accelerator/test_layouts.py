"""Layouts and kinds of modules whose weights are cast: channels last, convolutions, recurrent networks, attention."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

BF16 = torch.bfloat16
LAST = torch.channels_last


def test_channels_stay_last(accelerator, front_end):
    """Of images, weights and gradients, under each front end as in float32."""
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 8, 3)).to(accelerator)
    model.to(memory_format=LAST)
    x = torch.randn(2, 3, 12, 12, device=accelerator).to(memory_format=LAST).requires_grad_()
    exact = copy.deepcopy(model)
    expected = exact(x)
    expected.square().mean().backward()
    x.grad = None
    region = front_end()
    for _ in range(2):
        with region():
            y = model(x)
        assert y.dtype == BF16
        assert y.is_contiguous(memory_format=LAST)
        torch.testing.assert_close(y.float(), expected, rtol=0.03, atol=0.03)
    y.float().square().mean().backward()
    assert x.grad.is_contiguous(memory_format=LAST)
    for p, q in zip(model.parameters(), exact.parameters()):
        assert p.grad.stride() == p.stride()
        torch.testing.assert_close(p.grad, q.grad, rtol=0.05, atol=0.01)


@pytest.mark.parametrize("shape", [(128, 64), (64, 128)], ids=str)
def test_a_transposed_weight_keeps_its_layout(accelerator, front_end, shape):
    """Its gradient lies like it."""
    region = front_end()
    p = nn.Parameter(torch.randn(shape, device=accelerator).t())
    x = torch.randn(4, p.shape[1], device=accelerator)
    for _ in range(2):
        with region():
            y = F.linear(x, p)
        p.grad = None
        y.float().sum().backward()
        assert p.grad.stride() == p.stride()
    expected = F.linear(x.cpu().to(BF16), p.detach().cpu().to(BF16)).float()
    torch.testing.assert_close(y.cpu().float(), expected, rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_networks(accelerator, front_end, kind):
    model, x = kind(64, 64, num_layers=2).to(accelerator), torch.randn(5, 3, 64, device=accelerator)
    exact = copy.deepcopy(model)
    expected, _ = exact(x)
    expected.square().mean().backward()
    region = front_end()
    for _ in range(2):
        with region():
            y, _ = model(x)
        torch.testing.assert_close(y.float(), expected, rtol=0.05, atol=0.03)
        model.zero_grad()
        y.float().square().mean().backward()
    for p, q in zip(model.parameters(), exact.parameters()):
        assert p.grad.dtype == torch.float32
        torch.testing.assert_close(p.grad, q.grad, rtol=0.1, atol=0.01)


def test_attention(accelerator, front_end):
    model = nn.MultiheadAttention(64, 4, batch_first=True).to(accelerator)
    x = torch.randn(2, 7, 64, device=accelerator)
    expected, _ = model(x, x, x)
    region = front_end()
    with region():
        y, _ = model(x, x, x)
        z = F.scaled_dot_product_attention(*[x.view(2, 7, 4, 16).transpose(1, 2)] * 3)
    assert (y.dtype, z.dtype) == (BF16, BF16)
    torch.testing.assert_close(y.float(), expected, rtol=0.05, atol=0.03)
