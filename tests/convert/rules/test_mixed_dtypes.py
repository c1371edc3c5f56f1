"""Ops that refuse mixed dtypes get one dtype, though no list names them: under both front ends, in place too (D40, D41)."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp

F32, BF16 = torch.float32, torch.bfloat16
ROWS = torch.tensor([0, 2])
CONV_ONLY = hmp.Policy.from_ops(lower=["conv2d"], name="conv-only")
POLICIES = {"hpu-autocast": "hpu-autocast", "xpu": "xpu", "conv-only": CONV_ONLY}


def low(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=BF16)


def f32(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


def under(front_end: str, policy, call):
    with hmp.autocast("cpu", policy=policy) if front_end == "autocast" else contextlib.nullcontext():
        if front_end == "convert":
            hmp.convert(policy=policy)
        try:
            return call()
        finally:
            hmp.revert()


OUT_OF_PLACE = {
    "prelu": lambda: F.prelu(low(4, 4), f32(4)),
    "scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(
        low(1, 2, 4, 4), f32(1, 2, 4, 4), low(1, 2, 4, 4)
    ),
    "grid_sample": lambda: F.grid_sample(low(1, 1, 4, 4), f32(1, 4, 4, 2), align_corners=False),
    "embedding_bag": lambda: F.embedding_bag(
        torch.tensor([[0, 1]]), low(3, 4), per_sample_weights=f32(1, 2), mode="sum"
    ),
    "nll_loss": lambda: F.nll_loss(low(2, 3), torch.tensor([0, 1]), f32(3)),
    "cross_entropy": lambda: F.cross_entropy(low(2, 3), torch.tensor([0, 1]), f32(3)),
    "lerp": lambda: torch.lerp(low(4), f32(4), 0.5),
    "heaviside": lambda: torch.heaviside(low(4), f32(4)),
    "index_add": lambda: f32(4, 4).index_add(0, ROWS, low(2, 4)),
    "index_copy": lambda: low(4, 4).index_copy(0, ROWS, f32(2, 4)),
    "index_put": lambda: f32(4, 4).index_put((ROWS,), low(2, 4)),
    "masked_scatter": lambda: low(4).masked_scatter(torch.tensor([True, False, True, True]), f32(4)),
    "scatter": lambda: f32(4, 4).scatter(0, ROWS[:, None], low(2, 4)),
    "scatter_add": lambda: f32(4, 4).scatter_add(0, ROWS[:, None], low(2, 4)),
    "scatter_reduce": lambda: f32(4, 4).scatter_reduce(0, ROWS[:, None], low(2, 4), "mean"),
}


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("front_end", ["convert", "autocast"])
@pytest.mark.parametrize("op", OUT_OF_PLACE)
def test_the_widest(op: str, front_end: str, policy) -> None:
    with pytest.raises(RuntimeError):
        OUT_OF_PLACE[op]()
    listed = (op, policy) == ("prelu", "xpu")
    assert under(front_end, policy, OUT_OF_PLACE[op]).dtype is (BF16 if listed else F32)


@pytest.mark.parametrize("front_end", ["convert", "autocast"])
@pytest.mark.parametrize(
    "layer", [nn.Linear(4, 4), nn.Conv1d(4, 4, 1), nn.LSTM(4, 4), nn.GRU(4, 4)], ids=lambda m: type(m).__name__
)
def test_a_policy_may_leave_out_the_products(layer: nn.Module, front_end: str) -> None:
    """Its convolution hands a low tensor to layers that it does not name."""
    result = under(front_end, CONV_ONLY, lambda: layer(low(1, 4, 4)))
    assert (result if isinstance(result, torch.Tensor) else result[0]).dtype is F32


def assign(x: torch.Tensor, index, value: torch.Tensor) -> torch.Tensor:
    x[index] = value
    return x


IN_PLACE = {
    "x[i] = y": lambda: assign(f32(4, 4), ROWS, low(2, 4)),
    "x[mask] = y": lambda: assign(low(4), torch.tensor([True, True, False, False]), f32(2)),
    "index_add_": lambda: f32(4, 4).index_add_(0, ROWS, low(2, 4)),
    "index_copy_": lambda: low(4, 4).index_copy_(0, ROWS, f32(2, 4)),
    "index_put_": lambda: f32(4, 4).index_put_((ROWS,), low(2, 4)),
    "masked_scatter_": lambda: low(4).masked_scatter_(torch.tensor([True, False, True, True]), f32(4)),
    "scatter_": lambda: f32(4, 4).scatter_(0, ROWS[:, None], low(2, 4)),
    "lerp_": lambda: f32(4).lerp_(low(4), 0.5),
    "addmm_": lambda: f32(2, 2).addmm_(low(2, 2), low(2, 2)),
}


@pytest.mark.parametrize("policy", ["hmp", "hmp-o2", "hpu-autocast", "torch-cpu"])
@pytest.mark.parametrize("front_end", ["convert", "autocast"])
@pytest.mark.parametrize("op", IN_PLACE)
def test_in_place_the_others_take_the_dtype_of_the_target(op: str, front_end: str, policy: str) -> None:
    """The targets whose name says low are bfloat16."""
    with pytest.raises(RuntimeError):
        IN_PLACE[op]()
    expected = BF16 if op in ("x[mask] = y", "index_copy_", "masked_scatter_") else F32
    assert under(front_end, policy, IN_PLACE[op]).dtype is expected


def test_what_is_put_in_place_has_a_gradient() -> None:
    source = low(2, 4).requires_grad_()
    with hmp.autocast("cpu", policy="hmp"):
        x = f32(4, 4).index_add_(0, ROWS, source)
    x.sum().backward()
    assert source.grad.dtype is BF16
    assert torch.equal(source.grad, low(2, 4))


DERIVATIVES = {
    "affine_grid": lambda x: F.affine_grid(x[:2, :3].expand(1, 2, 3), (1, 1, 4, 4), align_corners=False),
    "cdist": lambda x: torch.cdist(x, x + 1, compute_mode="use_mm_for_euclid_dist"),
    "pinv": torch.linalg.pinv,
    "sparse.mm": lambda x: torch.sparse.mm(torch.eye(4).to_sparse(), x),
}


@pytest.mark.parametrize("policy", ["hmp", "hmp-o2", "hpu-autocast", "torch-cpu", "xpu"])
@pytest.mark.parametrize("front_end", ["convert", "autocast"])
@pytest.mark.parametrize("op", DERIVATIVES)
def test_products_inside_an_op_with_a_derivative_of_its_own(op: str, front_end: str, policy: str) -> None:
    """Their casts would be lost to its backward pass, which takes all to be of one dtype: it raised, or positions were in bfloat16."""
    torch.manual_seed(0)
    x = torch.randn(4, 4, requires_grad=True)
    call = DERIVATIVES[op]
    plain = call(x)
    (expected,) = torch.autograd.grad(plain.sum(), x)
    result = under(front_end, policy, lambda: call(x))
    (grad,) = torch.autograd.grad(result.sum(), x)
    assert result.dtype is F32
    assert torch.equal(result, plain)
    assert torch.equal(grad, expected)


@pytest.mark.parametrize("front_end", ["convert", "autocast"])
def test_a_policy_that_lists_mm_alone_does_not_lower_what_users_call_by_other_names(front_end: str) -> None:
    policy = hmp.Policy.from_ops(lower=["mm", "addmm"])
    assert under(front_end, policy, lambda: f32(4, 4) @ f32(4, 4)).dtype is F32
    assert under(front_end, policy, lambda: F.linear(f32(4, 4), f32(4, 4))).dtype is F32
    assert under(front_end, policy, lambda: torch.mm(f32(4, 4), f32(4, 4))).dtype is BF16


@pytest.mark.parametrize("policy", hmp.presets())
@pytest.mark.parametrize(
    "layer",
    [nn.RNN(4, 4), nn.GRU(4, 4), nn.LSTM(4, 4), nn.RNNCell(4, 4), nn.GRUCell(4, 4), nn.LSTMCell(4, 4)],
    ids=lambda m: type(m).__name__,
)
def test_recurrent_layers_decide_alike(layer: nn.Module, policy: str) -> None:
    """torch writes them in C++, of linear and others."""
    x = f32(3, 4)

    def dtypes(front_end: str) -> list[torch.dtype]:
        return [t.dtype for t in torch.utils._pytree.tree_leaves(under(front_end, policy, lambda: layer(x)))]

    assert dtypes("convert") == dtypes("autocast")
