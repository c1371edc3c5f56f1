"""hmp.autocast in training: backward passes, scalers, functions of one's own and checkpoints (F143 to F162)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from autocast_policies import BF16, FP16, FP32, PLAIN, UNDER_A, A, B, mat, results

from habana_mp import hmp

pytestmark = pytest.mark.usefixtures("autocast_as_it_was")


@pytest.mark.parametrize("inside", [True, False], ids=["backward-inside", "backward-outside"])
def test_backward_runs_in_the_dtypes_of_forward(inside: bool) -> None:
    """F143: the region round backward changes nothing. mul is lower in hpu-autocast, and exp float32."""
    region = hmp.autocast("cpu", policy="hpu-autocast")
    x = torch.randn(4, 4, requires_grad=True)
    seen = []
    with region:
        y = torch.exp(x) @ x
        y.register_hook(lambda grad: seen.append((grad * grad.float()).dtype))
        loss = y.float().sum()
        if inside:
            loss.backward()
    if not inside:
        loss.backward()
    assert x.grad.dtype == FP32
    assert seen == [FP32]
    x2 = x.detach().clone().requires_grad_()
    e = torch.exp(x2)
    (e.bfloat16() @ x2.bfloat16()).float().sum().backward()
    assert torch.equal(x.grad, x2.grad)


@pytest.mark.parametrize("outer", ["region", "none"])
def test_torch_autocast_inside_backward(outer: str) -> None:
    """Functions of others that say torch.amp.custom_fwd, hooks and recomputation that enter torch.autocast."""
    seen = []

    class Theirs(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu")
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx, grad):
            seen.append((mat() @ mat()).dtype)
            return grad

    def hook(_):
        seen.append((mat() @ mat()).dtype)
        with torch.autocast("cpu", FP16):
            seen.append((mat() @ mat()).dtype)
        with hmp.autocast("xpu"), hmp.autocast.current():
            seen.append((mat() @ mat()).dtype)

    x = mat().requires_grad_()
    x.register_hook(hook)
    with hmp.autocast("cpu"):
        y = Theirs.apply(x)
        if outer == "region":
            y.sum().backward()
    if outer == "none":
        y.sum().backward()
    assert seen == [BF16, FP32, FP16, FP32]


def test_training_float16_with_a_scaler() -> None:
    """F153, F162"""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = hmp.GradScaler("cpu", init_scale=2.0**10)
    x = torch.randn(32, 8)
    target = x.sum(1, keepdim=True)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        with hmp.autocast("cpu", FP16):
            out = model(x)
            assert out.dtype == FP16
            loss = F.mse_loss(out, target)
        assert loss.dtype == FP32
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 4
    assert scaler.get_scale() == 2.0**10


@pytest.mark.parametrize("cast_inputs", [None, FP32], ids=str)
def test_custom_functions_keep_the_policy(cast_inputs) -> None:
    """F149 to F151"""
    seen = []

    class Own(torch.autograd.Function):
        @staticmethod
        @hmp.custom_fwd(device_type="cpu", cast_inputs=cast_inputs)
        def forward(ctx, x):
            seen.append((x.dtype, results()))
            return x.clone()

        @staticmethod
        @hmp.custom_bwd(device_type="cpu")
        def backward(ctx, grad):
            seen.append(results())
            return grad

    x = mat(BF16).requires_grad_()
    with hmp.autocast("cpu", policy=A):
        y = Own.apply(x)
    y.sum().backward()
    expected = UNDER_A if cast_inputs is None else PLAIN
    assert seen == [(cast_inputs or BF16, expected), expected]


@pytest.mark.parametrize("cast_inputs", [None, FP32], ids=str)
def test_custom_functions_for_hpu_without_one(cast_inputs) -> None:
    """D28: each call is for its tensors' own device."""
    seen = []

    class Own(torch.autograd.Function):
        @staticmethod
        @hmp.custom_fwd(device_type="hpu", cast_inputs=cast_inputs)
        def forward(ctx, x):
            seen.append((x.dtype, (mat() @ mat()).dtype))
            return x.clone()

        @staticmethod
        @hmp.custom_bwd(device_type="hpu")
        def backward(ctx, grad):
            seen.append((mat() @ mat()).dtype)
            return grad

    with hmp.autocast("hpu"):
        y = Own.apply(mat(BF16).requires_grad_())
    y.sum().backward()
    expected = BF16 if cast_inputs is None else FP32
    assert seen == [(expected, expected), expected]


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not-reentrant"])
@pytest.mark.parametrize("converted", [True, False], ids=["converted", "alone"])
def test_checkpoints_recompute_under_their_policy(reentrant: bool, converted: bool) -> None:
    seen = []

    def block(x: torch.Tensor) -> torch.Tensor:
        seen.append(results())
        return torch.mm(x, x)

    x = mat().requires_grad_()
    with hmp.autocast("cpu", policy=B):
        pass  # the first region prepares
    if converted:
        hmp.convert(policy=hmp.Policy.from_ops(lower=["dot"]))
    with hmp.autocast("cpu", policy=A):
        y = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=reentrant)
    with hmp.autocast("cpu", policy=B):
        y.float().sum().backward()
    assert seen == [UNDER_A, UNDER_A]
    assert results() == PLAIN
