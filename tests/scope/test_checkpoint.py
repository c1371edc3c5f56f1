"""Activation checkpointing: what is recomputed for backward runs in the precision of the forward, whatever is in force by then."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed._composable import checkpoint as composable_checkpoint
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)

from habana_mp import hmp

X = torch.linspace(-1, 1, 12).view(3, 4)
BF16, FP32 = torch.bfloat16, torch.float32


class Part(nn.Module):
    """Keeps the dtype of every result that it computes, forward and recomputed."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)
        self.seen = []

    def forward(self, x):
        x = F.softmax(self.second(F.gelu(self.first(x))), -1) @ self.first.weight.t()
        self.seen.append(x.dtype)
        return x


def composable(part, x):
    composable_checkpoint(part)
    return part(x)


KINDS = {
    "none": lambda part, x: part(x),
    "reentrant": lambda part, x: checkpoint(part, x, use_reentrant=True),
    "non-reentrant": lambda part, x: checkpoint(part, x, use_reentrant=False),
    "non-reentrant-early-stop": lambda part, x: checkpoint(part, x, use_reentrant=False, early_stop=False),
    "sequential": lambda part, x: checkpoint_sequential(nn.Sequential(part), 1, x, use_reentrant=False),
    "wrapper": lambda part, x: checkpoint_wrapper(part)(x),
    "composable": composable,
    "selective": lambda part, x: checkpoint(
        part,
        x,
        use_reentrant=False,
        context_fn=functools.partial(
            create_selective_checkpoint_contexts,
            lambda ctx, op, *args, **kwargs: (
                CheckpointPolicy.MUST_SAVE if op == torch.ops.aten.addmm.default else CheckpointPolicy.PREFER_RECOMPUTE
            ),
        ),
    ),
}
CHECKPOINTS = [kind for kind in KINDS if kind != "none"]


def gradients(kind, *, forward=None, backward=None):
    """Gradients of a step, and the dtypes seen; ``forward`` and ``backward`` are context managers round the two halves."""
    part = Part()
    x = X.clone().requires_grad_()
    with forward or torch.enable_grad():
        out = KINDS[kind](part, x)
    loss = out.float().square().sum()
    with backward or torch.enable_grad():
        loss.backward()
    return [out.detach(), x.grad, *(parameter.grad for parameter in part.parameters())], part.seen


@pytest.mark.parametrize("policy", ["hmp", "hmp-o1", "hmp-resnet50", "hmp-o2"])
@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_gradients_are_those_without_checkpoint(kind, policy):
    hmp.convert(policy=policy)
    expected, seen = gradients("none")
    ours, seen_twice = gradients(kind)
    assert all(map(torch.equal, ours, expected))
    assert set(seen_twice) == set(seen)


@pytest.mark.parametrize(
    ("forward", "backward", "dtype"),
    [(hmp.disable_casts, None, FP32), (None, hmp.disable_casts, BF16)],
    ids=["forward", "backward"],
)
@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_disable_casts_round_one_half_only(kind, forward, backward, dtype):
    hmp.convert()
    expected, _ = gradients("none", forward=forward and forward(), backward=backward and backward())
    ours, seen = gradients(kind, forward=forward and forward(), backward=backward and backward())
    assert set(seen) == {dtype}
    assert ours[0].dtype == dtype
    assert all(map(torch.equal, ours, expected))
    assert torch.mm(X.t(), X).dtype == BF16


@pytest.mark.parametrize("kind", ["reentrant", "non-reentrant", "wrapper", "composable", "selective"])
@pytest.mark.parametrize(
    "change", [hmp.revert, functools.partial(hmp.convert, policy="hmp-o1")], ids=["revert", "another-policy"]
)
def test_policy_changed_between_forward_and_backward(kind, change):
    hmp.convert()
    part, x = Part(), X.clone().requires_grad_()
    loss = KINDS[kind](part, x).float().sum()
    change()
    with pytest.raises(
        RuntimeError,
        match=r"a checkpointed part of the model ran under .*finish backward before hmp.convert or hmp.revert",
    ):
        loss.backward()


@pytest.mark.parametrize("kind", ["reentrant", "non-reentrant"])
def test_the_same_policy_converted_again_in_between(kind):
    hmp.convert()
    part, x = Part(), X.clone().requires_grad_()
    loss = KINDS[kind](part, x).float().sum()
    hmp.revert()
    hmp.convert(policy=hmp.Policy.load("hmp"))
    loss.backward()
    assert x.grad.dtype == FP32


@pytest.mark.parametrize("kind", ["reentrant", "non-reentrant"])
def test_without_a_conversion(kind):
    expected, _ = gradients("none")
    hmp.convert()
    hmp.revert()
    assert all(map(torch.equal, gradients(kind)[0], expected))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # the inner of two reentrant ones
@pytest.mark.parametrize("use_reentrant", [True, False], ids=["reentrant", "non-reentrant"])
def test_nested(use_reentrant):
    def run(part, x, check):
        def inner(x):
            return check(part.second, F.gelu(part.first(x)))

        return check(inner, check(inner, x))

    def step(check):
        part, x = Part(), X.clone().requires_grad_()
        run(part, x, check).float().square().sum().backward()
        return [x.grad, *(parameter.grad for parameter in part.parameters())]

    hmp.convert()
    expected = step(lambda function, x: function(x))
    assert all(map(torch.equal, step(functools.partial(checkpoint, use_reentrant=use_reentrant)), expected))


@pytest.mark.parametrize("use_reentrant", [True, False], ids=["reentrant", "non-reentrant"])
def test_dropout_is_the_same_when_recomputed(use_reentrant):
    hmp.convert()
    x = torch.ones(64, requires_grad=True)
    out = checkpoint(lambda x: F.dropout(x, 0.5) * 1.5, x, use_reentrant=use_reentrant)
    out.float().sum().backward()
    assert torch.equal(x.grad != 0, out.detach() != 0)


@pytest.mark.parametrize("use_reentrant", [True, False], ids=["reentrant", "non-reentrant"])
def test_disable_casts_inside_the_checkpointed_function(use_reentrant):
    seen = []

    def function(x):
        with hmp.disable_casts():
            full = x @ x.t()
        low = x @ x.t()
        seen.extend([full.dtype, low.dtype])
        return full + low

    hmp.convert()
    x = X.clone().requires_grad_()
    with set_checkpoint_early_stop(False):
        checkpoint(function, x, use_reentrant=use_reentrant).sum().backward()
    assert seen == [FP32, BF16, FP32, BF16]


def test_an_exception_when_recomputed_leaves_casts_on():
    calls = []

    def function(x):
        calls.append(torch.mm(x, x).dtype)
        if len(calls) == 2:
            raise ValueError("second")
        return torch.mm(x, x).exp()

    hmp.convert()
    x = torch.eye(2, requires_grad=True)
    with hmp.disable_casts():
        loss = checkpoint(function, x, use_reentrant=False).sum()
    with pytest.raises(ValueError, match="second"):
        loss.backward()
    assert (calls, torch.mm(x, x).dtype) == ([FP32, FP32], BF16)


def test_compiled():
    part = Part()
    hmp.convert()

    def step(function):
        part.zero_grad()
        x = X.clone().requires_grad_()
        function(x).float().square().sum().backward()
        return [x.grad, *(parameter.grad.clone() for parameter in part.parameters())]

    def function(x):
        return checkpoint(lambda x: F.gelu(part.first(x)), x, use_reentrant=False) @ part.first.weight

    part.second = nn.Identity()
    expected = step(function)
    assert all(map(torch.equal, step(torch.compile(function, backend="aot_eager", fullgraph=True)), expected))
