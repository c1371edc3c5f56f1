"""Autograd functions of users, and forward-mode derivatives, beside torch.autocast."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.dlpack import from_dlpack, to_dlpack

from habana_mp import hmp

FP32, BF16 = torch.float32, torch.bfloat16
WIDTH = 128


def product_function(device, cast_inputs):
    seen = []

    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=device, cast_inputs=cast_inputs)
        def forward(ctx, x, p):
            ctx.save_for_backward(x, p)
            y = x @ p
            seen.append(y.dtype)
            return y

        @staticmethod
        @torch.amp.custom_bwd(device_type=device)
        def backward(ctx, grad):
            x, p = ctx.saved_tensors
            found = grad @ p.t(), x.t() @ grad
            seen.extend(each.dtype for each in found)
            return found

    return Product, seen


@pytest.mark.parametrize("cast_inputs", [None, FP32], ids=["as they are", "float32"])
def test_custom_forward_and_backward(accelerator, front_end, cast_inputs):
    """In a region with cast_inputs the function runs in float32 without one, as under torch.autocast. ``convert`` is no region: it casts there, too."""
    p = nn.Parameter(torch.randn(WIDTH, WIDTH, device=accelerator))
    x = torch.randn(4, WIDTH, device=accelerator, requires_grad=True)
    function, seen = product_function(accelerator, cast_inputs)
    (x @ p).sum().backward()
    expected = x.grad, p.grad
    x.grad = p.grad = None
    region = front_end()
    with region():
        y = function.apply(x, p)
    y.float().sum().backward()
    for found, exact in zip((x.grad, p.grad), expected):
        assert found.dtype == FP32
        torch.testing.assert_close(found, exact, rtol=0.05, atol=0.2)
    of_regions = front_end.make.__name__ != "converted"
    assert {*seen} == ({FP32} if cast_inputs is not None and of_regions else {BF16})


def test_gradients_of_gradients(accelerator, front_end):
    region = front_end()
    p = nn.Parameter(torch.randn(WIDTH, WIDTH, device=accelerator) / 8)
    x = torch.randn(4, WIDTH, device=accelerator, requires_grad=True)
    with region():
        y = F.linear(x, p).tanh()
    (gradient,) = torch.autograd.grad(y.float().sum(), x, create_graph=True)
    gradient.square().sum().backward()
    found = p.grad.clone()
    p.grad = None
    hmp.revert()
    (gradient,) = torch.autograd.grad(F.linear(x, p).tanh().sum(), x, create_graph=True)
    gradient.square().sum().backward()
    torch.testing.assert_close(found, p.grad, rtol=0.1, atol=0.5)


def test_a_result_that_is_the_weight_itself(accelerator, front_end):
    """What a call returns is written to by the caller, and the next call does not see that."""
    region, p = front_end(), nn.Parameter(torch.randn(WIDTH, WIDTH, device=accelerator))
    x = torch.randn(4, WIDTH, device=accelerator)
    expected = F.linear(x.cpu().to(BF16), p.detach().cpu().to(BF16)).float()
    for _ in range(3):
        with torch.no_grad(), region():
            y = F.linear(x, p)
            torch.testing.assert_close(y.cpu().float(), expected, rtol=2**-7, atol=2**-7)
            y.zero_()


def test_forward_mode(accelerator, front_end):
    """A cast keeps the tangent."""
    region, p = front_end(), nn.Parameter(torch.randn(WIDTH, WIDTH, device=accelerator))
    x, tangent = (torch.randn(4, WIDTH, device=accelerator) for _ in range(2))
    with torch.autograd.forward_ad.dual_level():
        given = torch.autograd.forward_ad.make_dual(x, tangent)
        with region():
            y = F.linear(given, p)
        found = torch.autograd.forward_ad.unpack_dual(y).tangent
    expected = F.linear(tangent.cpu().to(BF16), p.detach().cpu().to(BF16)).float()
    torch.testing.assert_close(found.cpu().float(), expected, rtol=2**-6, atol=2**-6)


def test_a_weight_that_a_graph_uses_twice(accelerator, front_end):
    """Its copy is there until both gradients are."""
    region, p = front_end(), nn.Parameter(torch.randn(WIDTH, WIDTH, device=accelerator) / 8)
    x, found = torch.randn(4, WIDTH, device=accelerator, requires_grad=True), []
    for inside in (True, False):
        if not inside:
            hmp.revert()
        with region() if inside else contextlib.nullcontext():
            y = F.linear(F.linear(x, p).tanh(), p)
        found.append(torch.autograd.grad(y.float().sum(), (x, p)))
    for each, exact in zip(*found):
        torch.testing.assert_close(each, exact, rtol=0.1, atol=0.1)


def product(x, p):
    """In bfloat16, computed on the host."""
    return F.linear(x.cpu().to(BF16), p.detach().cpu().to(BF16)).float()


def test_a_copy_that_its_graph_hands_out(accelerator, front_end):
    """A hook of saved tensors gets the copy of the weight, and writes to it."""
    region, p = front_end(), nn.Parameter(torch.randn(WIDTH, WIDTH, device=accelerator))
    x, saved = torch.randn(4, WIDTH, device=accelerator, requires_grad=True), []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: saved.append(each) or each, lambda each: each), region():
        F.linear(x, p)
    with torch.no_grad():
        for each in saved:
            if each.dtype == BF16:
                each.zero_()
        with region():
            y = F.linear(x, p)
    torch.testing.assert_close(y.cpu().float(), product(x, p), rtol=2**-7, atol=2**-7)


def test_a_call_whose_result_is_its_argument(accelerator, front_end):
    """What is written to it is not in the next call's copy."""
    if front_end.is_torch:
        pytest.skip("no such op is in torch's lists")
    region = front_end(policy=hmp.Policy.from_ops(lower=["linear", "reshape"]))
    p = nn.Parameter(torch.randn(WIDTH, WIDTH, device=accelerator))
    x = torch.randn(4, WIDTH, device=accelerator)
    with torch.no_grad(), region():
        F.linear(x, p)
        z = p.reshape(-1)
        assert not z.requires_grad
        z.zero_()
        y = F.linear(x, p)
    torch.testing.assert_close(y.cpu().float(), product(x, p), rtol=2**-7, atol=2**-7)


OTHERS = {
    "a tensor over the same memory": lambda memory: (nn.Parameter(memory.data), memory),
    "whose memory was given by DLPack": lambda memory: (nn.Parameter(from_dlpack(to_dlpack(memory))), memory),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_a_weight_that_another_tensor_writes_to(accelerator, front_end, kind):
    """By a version counter of its own."""
    region = front_end()
    p, other = OTHERS[kind](torch.randn(WIDTH, WIDTH, device=accelerator))
    x = torch.randn(4, WIDTH, device=accelerator)
    for _ in range(3):
        other.neg_()
        with torch.no_grad(), region():
            y = F.linear(x, p)
        torch.testing.assert_close(y.cpu().float(), product(x, p), rtol=2**-7, atol=2**-7)


def negate(x):
    x.neg_()


def test_writes_that_nothing_shows(accelerator, front_end):
    """By .data, by a view, in another storage, by a fused optimizer, by an op of a user: the next product has the new numbers."""
    region = front_end()
    library = torch.library.Library("late_tests", "FRAGMENT")
    library.define("negate_(Tensor(a!) x) -> ()")
    library.impl("negate_", negate, "CompositeExplicitAutograd")
    p = nn.Parameter(torch.randn(WIDTH, WIDTH, device=accelerator))
    x = torch.randn(4, WIDTH, device=accelerator)

    def fused():
        p.grad = torch.ones_like(p)
        torch.optim.SGD([p], lr=1.0, fused=True).step()

    def fused_alone():
        """Without an optimizer, whose step would be seen."""
        options = {"lr": 1.0, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0}
        with torch.no_grad():
            torch._fused_sgd_(
                [p], [torch.ones_like(p)], [], **options, nesterov=False, maximize=False, is_first_step=False
            )

    def in_place():
        with torch.no_grad():
            p.mul_(2)

    def by_a_view():
        with torch.no_grad():
            p[3:5].neg_()

    changes = [
        lambda: p.data.add_(1),
        fused,
        fused_alone,
        in_place,
        by_a_view,
        lambda: setattr(p, "data", torch.randn_like(p)),
        lambda: torch.ops.late_tests.negate_(p.detach()),
    ]
    for change in (lambda: None, *changes, *changes):
        change()
        with torch.no_grad(), region():
            first, y = F.linear(x, p), F.linear(x, p)
        expected = F.linear(x.cpu().to(BF16), p.detach().cpu().to(BF16)).float()
        for each in (first, y):
            torch.testing.assert_close(each.cpu().float(), expected, rtol=2**-6, atol=2**-6)
    library._destroy()
