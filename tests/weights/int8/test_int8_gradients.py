"""Gradients of ops in 8 bits with a frozen weight (D56): by the copy that the forward pass had, in the low dtype."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from int8_numbers import few_bits, rounded
from torch import nn
from torch.utils.checkpoint import checkpoint

from habana_mp import hmp

LISTS = ("weight_int8", "int8")


def region(title, *ops, **options):
    return hmp.autocast("cpu", policy=hmp.Policy.from_ops(**{title: ops or ["linear"]}), **options)


def dequantized(weight):
    """A frozen weight's numbers in the low dtype."""
    numbers, scales = rounded(weight.detach().flatten(1))
    return (numbers.float() * scales[:, None]).reshape(weight.shape).bfloat16()


def distance(found, expected):
    return ((found.float() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("title", LISTS)
def test_frozen_weights(title):
    """As LoRA has them: the product is in 8 bits, and the gradient of its input is by the same numbers."""
    layer, x = nn.Linear(96, 64).requires_grad_(False), few_bits(8, 96).requires_grad_()
    with region(title):
        y = layer(x)
        with torch.no_grad():
            assert torch.equal(y, layer(x))
    gradient = torch.randn(8, 64).bfloat16()
    y.backward(gradient)
    assert torch.equal(x.grad, (gradient @ dequantized(layer.weight)).float())


@pytest.mark.parametrize("title", LISTS)
def test_frozen_convolution(title):
    layer, x = (
        nn.Conv2d(6, 10, 3, padding=1, stride=2).requires_grad_(False),
        torch.randn(2, 6, 9, 8, requires_grad=True),
    )
    layer.bias.requires_grad_()
    with region(title, "conv2d"):
        y = layer(x)
    gradient = torch.randn_like(y)
    y.backward(gradient)
    same = dequantized(layer.weight)
    reference = x.detach().bfloat16().requires_grad_()
    F.conv2d(reference, same, padding=1, stride=2).backward(gradient)
    torch.testing.assert_close(x.grad, reference.grad.float(), rtol=2e-2, atol=1e-2)
    torch.testing.assert_close(layer.bias.grad, gradient.float().sum((0, 2, 3)))


CALLS = {
    "linear without a bias": ("linear", (64, 96), lambda x, w: F.linear(x, w)),  # noqa: PLW0108
    "linear of a batch": ("linear", (64, 96), lambda x, w: F.linear(x[None], w, torch.ones(64))),
    "linear of a vector": ("linear", (64, 96), lambda x, w: F.linear(x[0], w)),
    "mm": ("mm", (96, 64), lambda x, w: torch.mm(x, w)),  # noqa: PLW0108
    "matmul": ("matmul", (96, 64), lambda x, w: x @ w),
    "addmm with factors": ("addmm", (96, 64), lambda x, w: torch.addmm(torch.ones(8, 64), x, w, beta=0.5, alpha=2)),
    "bmm": ("bmm", (2, 96, 64), lambda x, w: torch.bmm(torch.stack([x, -x]), w)),
    "baddbmm": ("baddbmm", (2, 96, 64), lambda x, w: torch.baddbmm(torch.ones(64), torch.stack([x, -x]), w, alpha=2)),
    "conv1d without a bias": ("conv1d", (10, 8, 3), lambda x, w: F.conv1d(x[None], w, stride=2, padding=1)),
    "conv1d of one image": ("conv1d", (10, 4, 3), lambda x, w: F.conv1d(x, w, torch.ones(10), groups=2, dilation=3)),
}


@pytest.mark.parametrize("title", LISTS)
@pytest.mark.parametrize("name", CALLS)
def test_gradient_of_the_input(name, title):
    op, sizes, call = CALLS[name]
    weight, x = nn.Parameter(torch.randn(sizes), requires_grad=False), torch.randn(8, 96, requires_grad=True)
    call(x, weight).square().sum().backward()
    expected, x.grad = x.grad, None
    with region(title, op):
        y = call(x, weight)
    y.float().square().sum().backward()
    assert distance(x.grad, expected) < (0.02 if title == "int8" else 0.015)


@pytest.mark.parametrize("cached", [True, False], ids=["cached", "not cached"])
@pytest.mark.parametrize(
    "change",
    [lambda w: w.zero_(), lambda w: w.data.zero_(), lambda w: w.untyped_storage().resize_(0)],
    ids=["in place", "by its data", "freed"],
)
def test_a_weight_that_changes_before_the_backward_pass(change, cached):
    weight, x = nn.Parameter(torch.randn(64, 96), requires_grad=False), few_bits(8, 96).requires_grad_()
    with region("int8", cache_enabled=cached):
        y = F.linear(x, weight)
    kept = dequantized(weight)
    with torch.no_grad():
        change(weight)
    y.backward(torch.ones_like(y))
    assert torch.equal(x.grad, (torch.ones(8, 64).bfloat16() @ kept).float())
    assert hmp.cache.info().entries <= cached


@pytest.mark.parametrize("title", LISTS)
class TestTransforms:
    """Of torch.func and of forward mode: what is rounded by torch has the gradient of what is not."""

    def test_grad(self, title):
        layer, x = nn.Linear(96, 64).requires_grad_(False), torch.randn(8, 96)
        of = torch.func.grad(lambda x: layer(x).float().square().sum())
        expected = of(x)
        with region(title):
            assert distance(of(x), expected) < 0.02

    def test_jvp(self, title):
        layer, x, tangent = nn.Linear(96, 64).requires_grad_(False), torch.randn(8, 96), torch.randn(8, 96)
        expected = torch.func.jvp(layer, (x,), (tangent,))[1]
        with region(title):
            assert distance(torch.func.jvp(layer, (x,), (tangent,))[1], expected) < 0.02

    def test_of_the_weight(self, title):
        layer, x = nn.Linear(96, 64), torch.randn(8, 96)
        of = torch.func.grad(lambda w: torch.func.functional_call(layer, {"weight": w}, (x,)).float().square().sum())
        with region("lower"):
            expected = of(layer.weight.detach())
        with region(title):
            assert torch.equal(of(layer.weight.detach()), expected)

    def test_vmap_without_inputs(self, title):
        weight, bias = nn.Parameter(torch.zeros(64, 0)), torch.randn(64)
        with torch.no_grad(), region(title):
            found = torch.func.vmap(lambda x: F.linear(x, weight, bias))(torch.zeros(3, 8, 0))
        assert torch.equal(found, bias.bfloat16().expand(3, 8, 64))

    def test_vmap_of_single_images(self, title):
        layer, x = nn.Conv2d(3, 8, 3), torch.randn(4, 3, 6, 6) * torch.tensor([1, 1e-4, 1e4]).reshape(3, 1, 1)
        with torch.no_grad(), region(title, "conv2d"):
            assert distance(torch.func.vmap(layer)(x), layer(x).float()) < 0.01


def test_second_derivatives():
    layer, x = nn.Linear(96, 64).requires_grad_(False), torch.randn(8, 96, requires_grad=True)

    def second():
        (first,) = torch.autograd.grad(layer(x).float().square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    expected = second()
    with region("weight_int8"):
        assert distance(second(), expected) < 0.02


@pytest.mark.parametrize("front_end", ["convert", "autocast"])
@pytest.mark.parametrize("reentrant", [False, True], ids=["hooks", "reentrant"])
def test_checkpointed(reentrant, front_end):
    layer = nn.Sequential(nn.Linear(96, 64), nn.Unflatten(1, (4, 16)), nn.Conv1d(4, 8, 3)).requires_grad_(False)
    x, policy = torch.randn(8, 96, requires_grad=True), hmp.Policy.from_ops(int8=["linear", "conv1d"])
    if front_end == "convert":
        hmp.convert(policy=policy)
    with hmp.autocast("cpu", policy=policy) if front_end == "autocast" else contextlib.nullcontext():
        layer(x).sum().backward()
        expected, x.grad = x.grad, None
        checkpoint(layer, x, use_reentrant=reentrant).sum().backward()
    hmp.revert()
    assert torch.equal(x.grad, expected)
