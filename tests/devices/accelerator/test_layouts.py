"""Layouts and kinds of modules whose weights are cast: channels last, convolutions, recurrent networks, attention."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

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


def test_a_transposed_batch_is_one_product_with_a_weight(accelerator, front_end):
    """torch asks for that whether the weight requires grad, in inference, too: what it gets then is the copy."""
    if front_end.is_torch:
        pytest.skip("what torch.autocast has cast without gradients requires none: a product for each of the batch")
    region, p = front_end(), nn.Parameter(torch.randn(128, 128, device=accelerator))
    x = torch.randn(16, 4, 128, device=accelerator).to(BF16).transpose(0, 1)
    for _ in range(2):  # the second takes what the first has cast
        with torch.profiler.profile() as profile, torch.no_grad(), region():
            x @ p
        assert {"aten::mm", "aten::bmm"} & {event.name for event in profile.events()} == {"aten::mm"}


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_networks(accelerator, front_end, kind):
    model, x = kind(64, 64, num_layers=2).to(accelerator), torch.randn(5, 3, 64, device=accelerator)
    exact = copy.deepcopy(model)
    exact.flatten_parameters()  # CUDA's wants its weights in one block
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


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch says why it takes no other kernel
def test_the_kernel_of_attention_is_chosen_after_the_cast(accelerator, front_end):
    """It takes low dtypes alone."""
    given = [torch.randn(2, 4, 16, 64, device=accelerator, requires_grad=True) for _ in range(3)]
    with sdpa_kernel(SDPBackend.MATH):
        expected = F.scaled_dot_product_attention(*given)
    exact = torch.autograd.grad(expected.square().mean(), given)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION if accelerator == "cuda" else SDPBackend.OVERRIDEABLE):
        with pytest.raises(RuntimeError, match="No available kernel"):
            F.scaled_dot_product_attention(*given)
        region = front_end()
        with region():
            y = F.scaled_dot_product_attention(*given)
    assert y.dtype == BF16
    torch.testing.assert_close(y.float(), expected, rtol=0.05, atol=0.03)
    for found, gradient in zip(torch.autograd.grad(y.float().square().mean(), given), exact):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, gradient, rtol=0.05, atol=1e-4)
