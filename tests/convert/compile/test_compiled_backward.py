"""D43 in a backward pass that torch.compile traces: Dynamo does so inside of the forward, where a region with enabled=False is one of the model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from habana_mp import hmp

X = torch.linspace(-1, 1, 16).view(4, 4)
# Dynamo itself makes one.
pytestmark = pytest.mark.filterwarnings("ignore:<class 'torch.autograd.function.Function'> should not")


class Model(nn.Module):
    """Its forward is a function of the case."""

    def __init__(self, body) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.body = body

    def forward(self, x):
        return self.body(self, x)


def gradients(model, backend):
    """Of x and of what the model learns."""
    x = X.clone().requires_grad_()
    result = (torch.compile(model, backend=backend, fullgraph=True) if backend else model)(x)
    return torch.autograd.grad(result.float().square().sum(), (x, *model.parameters()), allow_unused=True)


@pytest.mark.parametrize("namespace", [torch.amp, hmp], ids=["torch.amp", "hmp"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_custom_bwd_casts_as_in_eager_mode(backend: str, namespace) -> None:
    class Product(torch.autograd.Function):
        @staticmethod
        @namespace.custom_fwd(device_type="cpu")
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return x @ weight

        @staticmethod
        @namespace.custom_bwd(device_type="cpu")
        def backward(ctx, grad):
            x, weight = ctx.saved_tensors
            return grad @ weight.mT, x.mT @ grad

    model = Model(lambda model, x: Product.apply(x, model.weight))
    hmp.convert(policy="hmp")
    assert model(X).dtype == torch.bfloat16
    assert all(map(torch.equal, gradients(model, backend), gradients(model, None)))


def test_a_region_in_a_module_that_the_backward_pass_calls() -> None:
    """That one is the model's: the product in it stays in float32."""

    def body(model, x):
        with torch.autocast("cpu", enabled=False):
            return x @ model.weight

    inner = Model(body)

    class Through(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return inner(grad.float())

    model = Model(lambda _, x: Through.apply(x))
    exact, _ = gradients(model, None)
    hmp.convert(policy="hmp")
    for backend in (None, "aot_eager"):
        assert torch.equal(gradients(model, backend)[0], exact)
