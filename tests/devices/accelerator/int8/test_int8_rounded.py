"""Eight bits on a device without kernels for them (D56): each call rounds the weight, and the device's own op multiplies in the low dtype.

test_late_device.py has the warning of the first such call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from int8_numbers import policy_of, rounded
from torch import nn

from habana_mp import hmp

pytestmark = pytest.mark.filterwarnings("ignore:habana_mp. there are no products in 8 bits")

LISTS = ("weight_int8", "int8")
BF16, F16 = torch.bfloat16, torch.float16


class Case(NamedTuple):
    op: str
    call: Callable[..., torch.Tensor]
    x: tuple[int, ...]
    weight: tuple[int, ...]
    bias: tuple[int, ...] | None
    of_weight: tuple[int, ...] = (1,)  # the dimensions along which the weight has one scale, and the input
    of_x: tuple[int, ...] = (-1,)


# fmt: off
OPS = {
    "linear": Case("linear", lambda x, w, b: F.linear(x, w, b), (8, 96), (64, 96), (64,)),  # noqa: PLW0108
    "linear without a bias": Case("linear", lambda x, w: F.linear(x, w), (8, 96), (64, 96), None),  # noqa: PLW0108
    "linear of a batch": Case("linear", lambda x, w, b: F.linear(x, bias=b, weight=w), (2, 3, 96), (64, 96), (64,)),
    "linear of a vector": Case("linear", lambda x, w, b: F.linear(x, w, b), (96,), (64, 96), (64,)),  # noqa: PLW0108
    "addmm": Case("addmm", lambda x, w, b: torch.addmm(b, x, w, beta=0.5, alpha=2), (8, 96), (96, 64), (64,), (0,)),
    "mm": Case("mm", lambda x, w: x.mm(w), (8, 96), (96, 64), None, (0,)),
    "matmul": Case("matmul", lambda x, w: x @ w, (2, 3, 96), (96, 64), None, (0,)),
    "bmm": Case("bmm", lambda x, w: torch.bmm(x, w), (3, 8, 96), (3, 96, 64), None),  # noqa: PLW0108
    "baddbmm": Case("baddbmm", lambda x, w, b: torch.baddbmm(b, x, w), (3, 8, 96), (3, 96, 64), (3, 8, 64)),
    "conv1d": Case("conv1d", lambda x, w, b: F.conv1d(x, w, b, 2), (2, 6, 17), (10, 6, 3), (10,), (1, 2), (1, 2)),
    "conv2d of groups": Case("conv2d", lambda x, w, b: F.conv2d(x, w, b, groups=4), (2, 8, 6, 6), (12, 2, 3, 3), (12,), (1, 2, 3), (1, 2, 3)),
    "conv2d of one image": Case("conv2d", lambda x, w: F.conv2d(x, w, padding="same"), (8, 6, 6), (12, 8, 3, 3), None, (1, 2, 3), (0, 1, 2)),
}
# fmt: on


def dequantized(numbers, dims):
    """What 8 bits leave of them, with one scale for all that lie along these dimensions."""
    last = tuple(range(-len(dims), 0))
    rows = numbers.movedim(dims, last)
    found, scales = rounded(rows.reshape(-1, math.prod(rows.shape[last[0] :])))
    return (found.float() * scales[:, None]).reshape(rows.shape).movedim(last, dims).contiguous()


@pytest.fixture(params=["convert", "autocast"])
def run(request, accelerator):
    """The result of a call under a policy, by either front end."""

    def run(policy, call):
        if request.param == "autocast":
            with hmp.autocast(accelerator, policy=policy):
                return call()
        hmp.convert(policy=policy)
        try:
            return call()
        finally:
            hmp.revert()

    return run


def assert_same(found, expected):
    """To the bit on the late device, which divides and adds up as the CPU does. The scales of CUDA may have other last bits."""
    assert found.dtype == expected.dtype
    if found.device.type == "late":
        assert torch.equal(found.cpu(), expected.cpu())
    else:
        torch.testing.assert_close(found, expected, rtol=2**-6, atol=2**-4)


def frozen(numbers, device):
    return nn.Parameter(numbers.to(device), requires_grad=False)


def rows_of(report, op):
    return [(row.decision, row.calls, row.casts) for row in report.rows if row.op == op]


@pytest.mark.parametrize("low", [BF16, F16], ids=str)
@pytest.mark.parametrize("title", LISTS)
@pytest.mark.parametrize("name", OPS)
def test_an_op_computes_with_the_rounded_weight(accelerator, run, name, title, low):
    """And, in the list ``int8``, with the rounded input."""
    case = OPS[name]
    x, weight = torch.randn(case.x), torch.randn(case.weight)
    bias = [] if case.bias is None else [torch.randn(case.bias)]
    left = [dequantized(x.to(low), case.of_x) if title == "int8" else x, dequantized(weight, case.of_weight), *bias]
    expected = case.call(*(each.to(low).to(accelerator) for each in left))
    given = [x.to(accelerator), frozen(weight, accelerator), *(each.to(accelerator) for each in bias)]
    with hmp.report() as report:
        for _ in range(2):
            assert_same(run(policy_of(title, case.op, low=low), lambda: case.call(*given)), expected)
    assert rows_of(report, case.op) == [(title, 2, 2 * len(given))]
    assert hmp.cache.info().entries == 0  # a weight that is rounded at each call has no copy


def test_rows_of_a_table(accelerator, run):
    """The late device has no embedding_bag."""
    indices, table = torch.tensor([3, 99, 0, 3, 5]), torch.randn(100, 40)
    own, given = frozen(table, accelerator), indices.to(accelerator)
    found = run(policy_of("weight_int8", "embedding"), lambda: F.embedding(given, own))
    assert_same(found, dequantized(table, (1,)).to(BF16)[indices].to(accelerator))


@pytest.mark.parametrize("title", LISTS)
def test_a_trained_weight_is_not_rounded(accelerator, run, title):
    layer, x = nn.Linear(96, 64).to(accelerator), torch.randn(8, 96).to(accelerator)
    expected = F.linear(x.to(BF16), layer.weight.to(BF16), layer.bias.to(BF16))
    with hmp.report() as report:
        found = run(policy_of(title, "linear"), lambda: layer(x))
    assert_same(found, expected)
    assert rows_of(report, "linear") == [("lower", 1, 3)]


@pytest.mark.parametrize("title", LISTS)
def test_a_frozen_weight_has_the_gradient_of_its_rounded_numbers(accelerator, run, title):
    """As if the input had not been rounded."""
    weight, x = torch.randn(64, 96), torch.randn(8, 96).to(accelerator).requires_grad_()
    own, gradient = frozen(weight, accelerator), torch.randn(8, 64).to(BF16).to(accelerator)
    run(policy_of(title, "linear"), lambda: F.linear(x, own)).backward(gradient)
    assert_same(x.grad, (gradient @ dequantized(weight, (1,)).to(BF16).to(accelerator)).float())
