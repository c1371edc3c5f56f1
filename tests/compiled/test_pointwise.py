"""Pointwise ops in compiled code have the bits of the kernels, which round once, or inside, or take numbers in the low dtype (D55)."""

from __future__ import annotations

import functools
import operator

import pytest
import torch
import torch.nn.functional as F
from drawn_models import converted

from habana_mp import hmp
from habana_mp._torch_private import VERSION

OPS = {
    "x + 0.1": lambda x, y: x + 0.1,
    "x - 0.1": lambda x, y: x - 0.1,
    "0.1 - x": lambda x, y: 0.1 - x,
    "add, number first": lambda x, y: torch.add(2.1, x),
    "add, whole number first": lambda x, y: torch.add(1, x),
    "add, number first, alpha": lambda x, y: torch.add(2.1, x, alpha=0.3),
    "sub, number first": lambda x, y: torch.sub(2.1, x),
    "a number between two of float32": lambda x, y: torch.zeros_like(x) + (1 + 2**-8 + 2**-11 + 2**-40),
    "-0.0 - x": lambda x, y: -0.0 - x.round(),
    "x * 0.3": lambda x, y: x * 0.3,
    "0.3 * x": lambda x, y: 0.3 * x,
    "x / 0.3": lambda x, y: x / 0.3,
    "0.3 / x": lambda x, y: 0.3 / x,
    "x * 1e-3 + y": lambda x, y: x * 1e-3 + y,
    "x * tensor full of one number": lambda x, y: x * torch.full_like(y, 0.3),
    "x * tensor without dimensions": lambda x, y: x * torch.full((), 0.1357),
    "tensor without dimensions * x": lambda x, y: torch.full((), 0.1357) * x,
    "x / tensor without dimensions": lambda x, y: x / torch.full((), 0.1357),
    "tensor without dimensions / x": lambda x, y: torch.full((), 0.1357) / x,
    "x + tensor without dimensions": lambda x, y: x + torch.full((), 0.1357),
    "tensor without dimensions - x": lambda x, y: torch.full((), 0.1357) - x,
    "x * whole tensor without dimensions": lambda x, y: x * torch.full((), 257),
    "x / whole tensor without dimensions": lambda x, y: x / torch.full((), 259, dtype=torch.int32),
    "whole tensor without dimensions - x": lambda x, y: torch.full((), 257) - x,
    "x * tensor without dimensions, float64": lambda x, y: x * torch.full((), 0.1357, dtype=torch.float64),
    "x + tensor without dimensions, float64": lambda x, y: x + torch.full((), 0.1357, dtype=torch.float64),
    "add, tensor without dimensions, alpha": lambda x, y: torch.add(x, torch.full((), 0.1357), alpha=0.3),
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
    "x ** 0.3": lambda x, y: x.abs() ** 0.3,
    "x ** 3.001": lambda x, y: x**3.001,
    "x ** -2.001": lambda x, y: x**-2.001,
    "x ** -1.7 + 0.3": lambda x, y: x.abs() ** -1.7 + 0.3,
    "x ** (1 / 3) * y": lambda x, y: x.abs() ** (1 / 3) * y,
    "softmax of x ** 3.3": lambda x, y: torch.softmax(x.abs() ** 3.3, -1),
    # Nothing rounded these before the next op.
    "x ** 4 + 0.3": lambda x, y: x**4 + 0.3,
    "x ** 3 * 0.3": lambda x, y: x**3 * 0.3,
    "0.3 - x ** -3": lambda x, y: 0.3 - x**-3,
    "addcmul * 3.3": lambda x, y: torch.addcmul(x, x, y) * 3.3,
    "addcdiv / 3.3": lambda x, y: torch.addcdiv(x, x, y.abs() + 1) / 3.3,
    "addcmul + 3.3": lambda x, y: torch.addcmul(x, x, y) + 3.3,
    "softmax of x ** 4": lambda x, y: torch.softmax(x**4, -1),
    "layer_norm of x ** 4": lambda x, y: F.layer_norm(x**4, (64,)),
    "glu of x ** 5": lambda x, y: F.glu(x**5),
    "glu": lambda x, y: F.glu(x),
    "glu, dim 0": lambda x, y: F.glu(x, 0),
    "fmod": lambda x, y: torch.fmod(x, 0.7),
    "remainder": lambda x, y: torch.remainder(x, 0.7),
    "remainder, of large numbers": lambda x, y: torch.remainder(x * 1000, 0.01),
    "remainder, negative": lambda x, y: torch.remainder(x, -0.7),
    "a chain": lambda x, y: torch.tanh(0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0))) + 1.0,
}
# Kernels of lerp are compiled with fused multiplication and addition, compiled code without: some round to the neighbour.
NEARLY = {f"lerp, {weight}": lambda x, y, w=weight: torch.lerp(x, y, w) for weight in (0.3, 0.7, 0.9, 0.99)}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Equal numbers may differ in the sign of zero."""
    return tensor.contiguous().view(torch.int16)


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
    assert torch.equal(bits(found), bits(expected))


@pytest.mark.parametrize("by", [operator.mul, operator.truediv])
def test_sizes_that_are_not_known(by) -> None:
    """257 is no number of bfloat16."""
    x = torch.randn(257, 64).bfloat16()
    with torch.no_grad(), hmp.autocast("cpu", policy=hmp.Policy.from_ops(lower=["mm"], fp32=[])):
        found = torch.compile(lambda x: by(x, x.shape[0]), dynamic=True)(x)
        assert torch.equal(found, by(x, 257))


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
    x, y, *grads = (torch.randn(64, 64, generator=generator).mul(3).to(dtype) for _ in range(6))
    grads[0] = grads[0][:, :32]

    def ops(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor, e: torch.Tensor) -> list[torch.Tensor]:
        return [F.glu(a), b**3, torch.lerp(c, d, 0.3), torch.erf(e * 0.3)]

    def gradients(function) -> list[torch.Tensor]:
        leaves = [each.clone().requires_grad_() for each in (x, x, x, y, y)]
        return torch.autograd.grad(function(*leaves), leaves, grads)

    with hmp.autocast("cpu", policy=hmp.Policy.from_ops(lower=["mm"], fp32=[])):
        for found, expected in zip(gradients(torch.compile(ops)), gradients(ops), strict=True):
            assert torch.equal(found, expected)


INSIDE = {
    "softmax": lambda x: torch.softmax(x, -1),
    "glu": lambda x: F.glu(x.bfloat16()),
    "remainder": lambda x: torch.remainder(x.bfloat16(), 0.7),
    "bmm of a row": lambda x: torch.bmm(x.bfloat16().unsqueeze(1), x.bfloat16().unsqueeze(2)),
}


@pytest.mark.parametrize("op", INSIDE)
def test_lists_do_not_reach_into_formulas(op) -> None:
    """A listed sum cast the sum inside of a bmm of one row."""
    policy = hmp.Policy.from_ops(
        lower=["sum", "cat", "sigmoid", "exp", "amax", "fmod", "where", "mul", "sub", "div"], fp32=[]
    )
    x = torch.randn(8, 64)
    with torch.no_grad(), converted(policy=policy):
        expected, found = INSIDE[op](x), torch.compile(INSIDE[op])(x)
    torch.testing.assert_close(found, expected, rtol=1e-5 if found.dtype == torch.float32 else 0, atol=1e-7)


BF16, FP16 = torch.bfloat16, torch.float16
WITH_COMPLEX_BFLOAT16 = hasattr(torch, "bcomplex32")
NOT_OURS = {
    "a number beyond float16": (FP16, lambda x, n: x + 1e6),
    "a complex exponent": (BF16, lambda x, n: x ** (3 + 0j)),
    "an exponent that is not known": (BF16, lambda x, n: x ** n.item()),
    "an alpha that is not known": (BF16, lambda x, n: torch.sub(x, x, alpha=n.item())),
    "two tensors without dimensions": (BF16, lambda x, n: torch.add(x[0], torch.full((), 0.1))),
    "two dtypes": (BF16, lambda x, n: x + torch.full((8,), 0.1)),
}


@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex")
@pytest.mark.parametrize("op", NOT_OURS)
def test_what_is_left_to_torch(op, monkeypatch) -> None:
    """No error of ours, and the same dtype."""
    monkeypatch.setattr(torch._dynamo.config, "capture_scalar_outputs", True)
    dtype, function = NOT_OURS[op]
    if op == "a complex exponent" and WITH_COMPLEX_BFLOAT16:
        pytest.skip("torch has such a dtype from 2.15 on, and no power in it, compiled or not")
    if op == "an exponent that is not known" and VERSION < (2, 13):
        pytest.skip("torch raises GuardOnDataDependentSymNode, with no policy too")
    x, n = torch.linspace(1, 2, 8).to(dtype), torch.tensor(2)
    with torch.no_grad(), hmp.autocast("cpu", dtype=dtype, policy=hmp.Policy.from_ops(lower=["mm"], fp32=[])):
        expected = function(x, n)
        found = torch.compile(function, fullgraph=True)(x, n)
    torch.testing.assert_close(found, expected)
