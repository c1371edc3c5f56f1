"""Pointwise ops in compiled code have the bits of the kernels, which round once, or inside, or take numbers in the low dtype (D55)."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F

from habana_mp import hmp

OPS = {
    "x + 0.1": lambda x, y: x + 0.1,
    "x - 0.1": lambda x, y: x - 0.1,
    "0.1 - x": lambda x, y: 0.1 - x,
    "x + 3": lambda x, y: x + 3,
    "add, alpha": lambda x, y: torch.add(x, y, alpha=0.3),
    "add, number, alpha": lambda x, y: torch.add(x, 1.7, alpha=0.3),
    "add, number, whole alpha": lambda x, y: torch.add(x, 1.7, alpha=2),
    "sub, alpha": lambda x, y: torch.sub(x, y, alpha=0.3),
    "rsub, alpha": lambda x, y: torch.rsub(x, 0.1, alpha=0.3),
    "x + y": lambda x, y: x + y,
    "x - y": lambda x, y: x - y,
    "x ** 3": lambda x, y: x**3,
    "x ** -2": lambda x, y: x**-2,
    "x ** 2": lambda x, y: x**2,
    "addcdiv": lambda x, y: torch.addcdiv(x, y, y.abs() + 1),
    "glu": lambda x, y: F.glu(x),
    "glu, dim 0": lambda x, y: F.glu(x, 0),
    "fmod": lambda x, y: torch.fmod(x, 0.7),
    "remainder": lambda x, y: torch.remainder(x, 0.7),
    "a chain": lambda x, y: torch.tanh(0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0))) + 1.0,
}
# Kernels of lerp are compiled with fused multiplication and addition, compiled code without: some round to the neighbour.
NEARLY = {"lerp, 0.3": lambda x, y: torch.lerp(x, y, 0.3), "lerp, 0.7": lambda x, y: torch.lerp(x, y, 0.7)}


@functools.cache
def both(dtype: torch.dtype) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The results of uncompiled and of compiled code, by op: all in one graph."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(64, 64, generator=generator).mul(3).to(dtype) for _ in range(2))
    ops = OPS | NEARLY

    def all_ops(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [op(x, y) for op in ops.values()]

    with torch.no_grad(), hmp.autocast("cpu", policy=hmp.Policy.from_ops(lower=["mm"], fp32=[])):
        expected = all_ops(x, y)
        found = torch.compile(all_ops)(x, y)
    return dict(zip(ops, zip(expected, found, strict=True), strict=True))


DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


@DTYPES
@pytest.mark.parametrize("op", OPS)
def test_bits(op, dtype) -> None:
    expected, found = both(dtype)[op]
    assert found.dtype == dtype
    assert torch.equal(found, expected)


@DTYPES
@pytest.mark.parametrize("op", NEARLY)
def test_nearly(op, dtype) -> None:
    """27 % of the numbers were others, up to three times as large."""
    expected, found = both(dtype)[op]
    assert (found != expected).float().mean() < 0.01


@DTYPES
def test_gradients(dtype) -> None:
    """Of glu the kernel rounds the sigmoid, of ``x ** 3`` and lerp torch has ops of its own."""
    generator = torch.Generator().manual_seed(0)
    x, y, *grads = (torch.randn(64, 64, generator=generator).mul(3).to(dtype) for _ in range(5))
    grads[0] = grads[0][:, :32]

    def ops(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> list[torch.Tensor]:
        return [F.glu(a), b**3, torch.lerp(c, d, 0.3)]

    def gradients(function) -> list[torch.Tensor]:
        leaves = [each.clone().requires_grad_() for each in (x, x, x, y)]
        return torch.autograd.grad(function(*leaves), leaves, grads)

    with hmp.autocast("cpu", policy=hmp.Policy.from_ops(lower=["mm"], fp32=[])):
        for found, expected in zip(gradients(torch.compile(ops)), gradients(ops), strict=True):
            assert torch.equal(found, expected)


def test_a_number_beyond_float16() -> None:
    """It is left to torch: no error of ours."""
    x = torch.ones(8, dtype=torch.float16)
    with torch.no_grad(), hmp.autocast("cpu", dtype=torch.float16, policy=hmp.Policy.from_ops(lower=["mm"], fp32=[])):
        assert torch.equal(torch.compile(lambda x: x + 1e6)(x), x + 1e6)
