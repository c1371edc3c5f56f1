"""vmap, grad, jacrev, forward-mode AD, functional_call, parametrize and second derivatives under convert.

What is expected is the same function with the casts of the preset hmp written by hand: mm, matmul, linear lower; softmax, log fp32.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.nn.utils import parametrize

from habana_mp import hmp

BF16, FP32 = torch.bfloat16, torch.float32


# Forward-mode AD scripts decompositions at its first use: torch's own warning.


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def low(t: torch.Tensor) -> torch.Tensor:
    return t.to(BF16)


def loss(w, x):
    return (F.softmax(torch.tanh(F.linear(x, w)), -1) ** 3).sum()


def loss_by_hand(w, x):
    return (F.softmax(torch.tanh(F.linear(low(x), low(w))).float(), -1) ** 3).sum()


def matrix(w, x):
    return x @ w


def matrix_by_hand(w, x):
    return low(x) @ low(w)


W, X, BATCH = (
    torch.linspace(-1, 1, 16).view(4, 4),
    torch.linspace(-2, 1, 12).view(3, 4),
    torch.linspace(-1, 2, 24).view(2, 3, 4),
)

TRANSFORMS = {
    "grad": lambda f, g: grad(f)(W, X),
    "vjp": lambda f, g: vjp(f, W, X)[1](torch.ones(())),
    "jvp": lambda f, g: jvp(f, (W, X), (torch.ones_like(W), torch.ones_like(X))),
    "jacrev": lambda f, g: jacrev(f)(W, X),
    "jacfwd": lambda f, g: jacfwd(f)(W, X),
    "hessian": lambda f, g: hessian(f)(W, X),
    "grad-of-grad": lambda f, g: grad(lambda w: grad(f)(w, X).square().sum())(W),
    "vmap": lambda f, g: vmap(g, in_dims=(None, 0))(W, BATCH),
    "vmap-of-grad": lambda f, g: vmap(grad(f), in_dims=(None, 0))(W, BATCH),
    "vmap-of-vmap": lambda f, g: vmap(vmap(g, in_dims=(None, 0)), in_dims=(None, 0))(W, BATCH),
    "vmap-out_dims": lambda f, g: vmap(g, in_dims=(None, 1), out_dims=1)(W, BATCH),
    "vmap-chunks": lambda f, g: vmap(g, in_dims=(None, 0), chunk_size=1)(W, BATCH),
    "jacrev-of-matrix": lambda f, g: jacrev(g, argnums=1)(W, X),
    "functionalize": lambda f, g: torch.func.functionalize(g)(W, X),
}


def flat(result):
    return [result] if isinstance(result, torch.Tensor) else [t for part in result for t in flat(part)]


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transform_equals_hand_written_casts(transform):
    expected = flat(TRANSFORMS[transform](loss_by_hand, matrix_by_hand))
    hmp.convert()
    ours = flat(TRANSFORMS[transform](loss, matrix))
    assert [t.dtype for t in ours] == [t.dtype for t in expected]
    assert all(map(torch.equal, ours, expected))


@pytest.mark.parametrize("transform", ["grad", "vmap", "jacrev", "jvp"])
def test_transform_in_disable_casts(transform):
    expected = flat(TRANSFORMS[transform](loss, matrix))
    hmp.convert()
    with hmp.disable_casts():
        ours = flat(TRANSFORMS[transform](loss, matrix))
    assert all(map(torch.equal, ours, expected))


def test_disable_casts_in_a_vmapped_function():
    def function(x):
        with hmp.disable_casts():
            full = x @ W
        return full, x @ W

    hmp.convert()
    assert [t.dtype for t in vmap(function)(BATCH)] == [FP32, BF16]


def test_vmap_of_a_promote_op_with_a_scalar_per_sample_d13():
    """Inside vmap a tensor of one number per sample has no dimensions, as it has none for the function."""
    hmp.convert()
    assert vmap(torch.add)(low(BATCH), torch.ones(2)).dtype == BF16
    assert torch.add(low(BATCH), torch.ones(2, 1, 1)).dtype == FP32


class TestModules:
    def test_functional_call(self):
        model, x = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)), torch.randn(3, 4)
        hmp.convert()
        parameters = dict(model.named_parameters())
        doubled = {name: parameter * 2 for name, parameter in parameters.items()}
        assert {value.dtype for value in doubled.values()} == {BF16}  # mul is in the lower list
        out = functional_call(model, doubled, (x,))
        gradients = grad(lambda p: functional_call(model, p, (x,)).float().sum())(parameters)
        model(x).float().sum().backward()
        assert out.dtype == BF16
        assert all(torch.equal(gradients[name], parameter.grad) for name, parameter in model.named_parameters())

    def test_per_sample_gradients(self):
        model, x = nn.Linear(4, 2), torch.randn(5, 4)
        parameters = dict(model.named_parameters())
        hmp.convert()

        def sample_loss(p, sample):
            return functional_call(model, p, (sample[None],)).float().sum()

        together = vmap(grad(sample_loss), in_dims=(None, 0))(parameters, x)
        for i, sample in enumerate(x):
            assert torch.equal(together["weight"][i], grad(sample_loss)(parameters, sample)["weight"])

    def test_ensemble(self):
        models = [nn.Linear(4, 2) for _ in range(3)]
        x = torch.randn(5, 4)
        hmp.convert()
        parameters, buffers = torch.func.stack_module_state(models)
        together = vmap(lambda p, b: functional_call(models[0], (p, b), (x,)))(parameters, buffers)
        expected = torch.stack([model(x) for model in models])
        assert together.dtype == expected.dtype == BF16
        with hmp.disable_casts():
            torch.testing.assert_close(together, expected, atol=0.01, rtol=0.01)  # vmap's addmm is a bmm and an add

    @pytest.mark.parametrize("when", ["before", "after"])
    def test_parametrize(self, when):
        class Symmetric(nn.Module):
            def forward(self, weight):
                return weight.triu() + weight.triu(1).transpose(-1, -2)

        layer = nn.Linear(4, 4)
        x = torch.randn(3, 4)
        if when == "after":
            hmp.convert()
        parametrize.register_parametrization(layer, "weight", Symmetric())
        hmp.convert()
        out = layer(x)
        out.float().sum().backward()
        symmetric = layer.weight.detach()
        assert (out.dtype, layer.parametrizations.weight.original.grad.dtype) == (BF16, FP32)
        assert torch.equal(out, F.linear(low(x), low(symmetric), low(layer.bias)))

    @pytest.mark.parametrize(
        "norm",
        [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm],
        ids=["weight_norm", "spectral_norm"],
    )
    def test_torch_parametrizations(self, norm):
        hmp.convert()
        layer = norm(nn.Linear(4, 4))
        layer(torch.randn(3, 4)).float().sum().backward()
        assert {parameter.grad.dtype for parameter in layer.parameters()} == {FP32}
        assert {buffer.dtype for buffer in layer.buffers()} <= {FP32}

    def test_orthogonal(self):
        hmp.convert()
        with hmp.disable_casts():
            layer = nn.utils.parametrizations.orthogonal(nn.Linear(4, 4))
        layer(torch.randn(3, 4)).float().sum().backward()
        assert {parameter.grad.dtype for parameter in layer.parameters()} == {FP32}


class TestDerivatives:
    def test_gradients_come_in_the_dtype_of_the_source(self):
        w, x = W.clone().requires_grad_(), X.clone().requires_grad_()
        hmp.convert()
        (x @ w).sum().backward()
        assert (w.grad.dtype, x.grad.dtype) == (FP32, FP32)

    @pytest.mark.parametrize(
        ("function", "by_hand"),
        [
            (lambda w, x: torch.tanh(x @ w), lambda w, x: torch.tanh(low(x) @ low(w))),
            (lambda w, x: torch.log(x.exp() @ w.exp()), lambda w, x: torch.log((low(x.exp()) @ low(w.exp())).float())),
            (lambda w, x: F.linear(x, w) * x, lambda w, x: F.linear(low(x), low(w)) * low(x)),
            (lambda w, x: F.linear(x, w) + x, lambda w, x: F.linear(low(x), low(w)).float() + x),
            (lambda w, x: torch.cat([x @ w, x]), lambda w, x: torch.cat([(low(x) @ low(w)).float(), x])),
            (lambda w, x: F.mse_loss(x @ w, x), lambda w, x: F.mse_loss(low(x) @ low(w), low(x))),
            (lambda w, x: F.layer_norm(x @ w, [4]), lambda w, x: F.layer_norm(low(x) @ low(w), [4])),
        ],
        ids=["lower", "fp32", "lower-mul", "promote", "promote-list", "first_input", "norm"],
    )
    def test_double_backward(self, function, by_hand):
        def second(function):
            w, x = W.clone().requires_grad_(), X.clone().requires_grad_()
            value = function(w, x)
            with hmp.disable_casts():  # for what is done with it, which the hand-written function does not cast
                value = value.float().square().sum()
                first = torch.autograd.grad(value, (w, x), create_graph=True)
                penalty = sum(gradient.square().sum() for gradient in first)
                return [*first, *torch.autograd.grad(penalty, (w, x))]

        expected = second(by_hand)
        hmp.convert()
        ours = second(function)
        assert {t.dtype for t in ours} == {FP32}
        assert all(map(torch.equal, ours, expected))

    def test_gradient_check_of_casts_alone(self):
        """A policy whose low dtype is kept out of it: promote in float32 is exact, so finite differences agree."""
        x = torch.linspace(-1, 1, 6, dtype=torch.float64).view(2, 3).requires_grad_()
        hmp.convert()
        assert torch.autograd.gradcheck(lambda x: torch.mm(x, x.t()), (x,))  # float64 is left alone (D10)
        assert torch.autograd.gradgradcheck(lambda x: F.softmax(torch.mm(x, x.t()), -1), (x,))

    @pytest.mark.parametrize("function", [loss, matrix], ids=["loss", "matrix"])
    def test_forward_mode(self, function):
        by_hand = {loss: loss_by_hand, matrix: matrix_by_hand}[function]

        def tangent(function):
            with forward_ad.dual_level():
                dual = function(forward_ad.make_dual(W, torch.ones_like(W)), X)
                return list(forward_ad.unpack_dual(dual))

        expected = tangent(by_hand)
        hmp.convert()
        ours = tangent(function)
        assert [t.dtype for t in ours] == [t.dtype for t in expected]
        assert all(map(torch.equal, ours, expected))

    @pytest.mark.parametrize(
        "function", [lambda w: X @ w, lambda w: F.softmax(low(X) @ low(w), -1)], ids=["lower", "fp32"]
    )
    def test_forward_mode_through_a_cast_alone(self, function):
        hmp.convert()
        with forward_ad.dual_level():
            dual = function(forward_ad.make_dual(W, torch.ones_like(W)))
            assert forward_ad.unpack_dual(dual).tangent.dtype == dual.dtype

    def test_first_use_of_forward_mode_scripts_decompositions_of_torch(self):
        hmp.convert()
        from torch._decomp import decompositions_for_jvp

        assert torch.jit.script(decompositions_for_jvp.native_layer_norm_backward).graph

    def test_autograd_function(self):
        class Square(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return torch.mm(x, x)

            @staticmethod
            def backward(ctx, gradient):
                (x,) = ctx.saved_tensors
                return gradient @ x.t() + x.t() @ gradient

        x = W.clone().requires_grad_()
        hmp.convert()
        out = Square.apply(x)
        out.float().sum().backward()
        assert (out.dtype, x.grad.dtype) == (BF16, FP32)
