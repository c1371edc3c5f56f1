"""Ops inside of a torch.autograd.Function, where no gradient comes to: its result has one, and what they make of it counts for them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from habana_mp import hmp

BATCHES = 8
INPUTS = [torch.randn(64, 32, generator=torch.Generator().manual_seed(number)) for number in range(BATCHES)]
LABELS = [torch.randint(0, 4, (64,), generator=torch.Generator().manual_seed(number)) for number in range(BATCHES)]
FIRST = (torch.randn(64, 32, generator=torch.Generator().manual_seed(100)) * 10).requires_grad_()
LAST = (torch.randn(4, 64, generator=torch.Generator().manual_seed(101)) / 8).requires_grad_()


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return torch.matmul(x, weight.t())

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient.float() @ weight, gradient.float().t() @ x


class Decorated(Product):
    forward = staticmethod(hmp.custom_fwd(Product.forward, device_type="cpu"))
    backward = staticmethod(hmp.custom_bwd(Product.backward, device_type="cpu"))


class Several(Product):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return (torch.matmul(x, weight.t()) * 1).view(64, 8, 8)

    @staticmethod
    def backward(ctx, gradient):
        return Product.backward(ctx, gradient.reshape(64, 64))


FUNCTIONS = {"plain": Product, "decorated": Decorated, "several ops": Several}


def loss_of(function, x, labels) -> torch.Tensor:
    """Arguments of sin that are large: what the product rounds is nearly all of the error."""
    product = getattr(function, "apply", function)
    return F.cross_entropy(F.linear(torch.sin(product(x, FIRST).float().flatten(1)), LAST), labels)


def reported(product, policy="balanced") -> hmp.CastReport:
    with hmp.report(values=True) as report:
        for x, labels in zip(INPUTS, LABELS, strict=True):
            with hmp.autocast("cpu", policy=policy):
                loss = loss_of(product, x, labels)
            loss.backward()
    return report


def measured(product, policy) -> float:
    """The root of the mean of the squares by which the losses are off."""
    off = []
    for x, labels in zip(INPUTS, LABELS, strict=True):
        with hmp.autocast("cpu", policy=policy):
            low = loss_of(product, x, labels)
        off.append(low - loss_of(product, x, labels))
    return torch.stack(off).square().mean().sqrt().item()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_op_inside_makes_the_error(name):
    """It had no share, and the only op outside, which makes nearly none, had 100 %."""
    product, report = FUNCTIONS[name], reported(FUNCTIONS[name])
    (found,) = report.errors().values()
    assert found == pytest.approx(measured(product, "balanced"), rel=0.5)
    assert report.error_share("matmul") > 0.8
    first = report.edits()[0]
    assert first.text == "+matmul:fp32"
    assert first.error_after < 0.1 * found
    assert measured(product, hmp.Policy.load("balanced").with_edits(first.text)) < 0.1 * found


def test_a_policy_that_lowers_the_op_inside_is_foretold():
    """It was foretold to add nothing: an edit for speed would have put it into the low dtype."""
    wide = hmp.Policy.load("balanced").with_edits("+matmul:fp32")
    foretold = reported(Product, wide).forecast("balanced")
    assert foretold == pytest.approx(measured(Product, "balanced"), rel=0.5)


def test_a_comparison_has_the_share_of_the_op_inside():
    def step():
        loss_of(Decorated, INPUTS[0], LABELS[0]).backward()

    rows = [row for row in hmp.compare(step, None, "balanced").rows if row.phase == "forward"]
    assert max(rows, key=lambda row: row.share or 0.0).op == "matmul"


def test_a_checkpoint_counts_once():
    """It is a function of autograd, too, and its ops run again with gradients."""

    def plain(x, weight):
        return torch.matmul(x, weight.t())

    def reentrant(x, weight):
        return checkpoint(plain, x, weight, use_reentrant=True)

    assert reported(reentrant).errors().popitem()[1] == pytest.approx(reported(plain).errors().popitem()[1], rel=1e-6)
