"""The arguments of norms: statistics are never cast, and weight and bias in fp32 only (D14)."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from arrived_calls import BF16, F32, arrived, dtypes_arrived, image, policy
from torch import nn

from habana_mp import hmp

NORMS = {
    "F.batch_norm": (
        lambda t: F.batch_norm(t.input, t.mean, t.var, t.weight, t.bias, training=True), "input mean var weight bias",
    ),
    "F.batch_norm, keywords": (
        lambda t: F.batch_norm(t.input, running_var=t.var, running_mean=t.mean, bias=t.bias, weight=t.weight),
        "input var mean bias weight",
    ),
    "F.batch_norm, input by keyword": (
        lambda t: F.batch_norm(running_mean=t.mean, running_var=t.var, input=t.input), "mean var input",
    ),
    "torch.batch_norm": (
        lambda t: torch.batch_norm(t.input, t.weight, t.bias, t.mean, t.var, True, 0.1, 1e-5, False), "input weight bias mean var",
    ),
    "F.instance_norm": (
        lambda t: F.instance_norm(t.input, t.mean, t.var, t.weight, t.bias), "input mean var weight bias",
    ),
    "torch.instance_norm": (
        lambda t: torch.instance_norm(t.input, t.weight, t.bias, t.mean, t.var, True, 0.1, 1e-5, False), "input weight bias mean var",
    ),
    "torch.native_batch_norm": (
        lambda t: torch.native_batch_norm(t.input, t.weight, t.bias, t.mean, t.var, True, 0.1, 1e-5), "input weight bias mean var",
    ),
    "torch._native_batch_norm_legit": (
        lambda t: torch._native_batch_norm_legit(t.input, t.weight, t.bias, t.mean, t.var, True, 0.1, 1e-5),
        "input weight bias mean var",
    ),
    "torch._native_batch_norm_legit without statistics": (
        lambda t: torch._native_batch_norm_legit(t.input, t.weight, t.bias, True, 0.1, 1e-5), "input weight bias",
    ),
    "torch._native_batch_norm_legit_no_training": (
        lambda t: torch._native_batch_norm_legit_no_training(t.input, t.weight, t.bias, t.mean, t.var, 0.1, 1e-5),
        "input weight bias mean var",
    ),
    "torch._batch_norm_impl_index": (
        lambda t: torch._batch_norm_impl_index(t.input, t.weight, t.bias, t.mean, t.var, True, 0.1, 1e-5, False),
        "input weight bias mean var",
    ),
    "torch.cudnn_batch_norm": (
        lambda t: torch.cudnn_batch_norm(t.input, t.weight, t.bias, t.mean, t.var, True, 0.1, 1e-5), "input weight bias mean var",
    ),
    "torch.miopen_batch_norm": (
        lambda t: torch.miopen_batch_norm(t.input, t.weight, t.bias, t.mean, t.var, True, 0.1, 1e-5), "input weight bias mean var",
    ),
    "torch.native_layer_norm": (lambda t: torch.native_layer_norm(t.input, (4,), t.wide, t.wide, 1e-5), "input wide wide"),
    "torch.native_group_norm": (
        lambda t: torch.native_group_norm(t.input, t.weight, t.bias, 1, 2, 16, 1, 1e-5), "input weight bias",
    ),
    "F.layer_norm": (lambda t: F.layer_norm(t.input, (4,), t.wide, t.wide), "input wide wide"),
    "F.layer_norm, keywords": (lambda t: F.layer_norm(t.input, (4,), bias=t.wide, weight=t.wide), "input wide wide"),
    "torch.layer_norm": (lambda t: torch.layer_norm(t.input, (4,), t.wide, t.wide), "input wide wide"),
    "F.group_norm": (lambda t: F.group_norm(t.input, 1, t.weight, t.bias), "input weight bias"),
    "torch.group_norm": (lambda t: torch.group_norm(t.input, 1, t.weight, t.bias), "input weight bias"),
}  # fmt: skip


class NormTensors:
    def __init__(self, input_dtype, others):
        self.input = image(input_dtype)
        self.weight, self.bias, self.mean, self.var = (torch.ones(2, dtype=others) for _ in range(4))
        self.wide = torch.ones(4, dtype=others)


@pytest.mark.parametrize(("call", "order"), NORMS.values(), ids=NORMS.keys())
@pytest.mark.parametrize(
    ("action", "given", "others", "input_to", "affine_to"),
    [
        ("lower", F32, F32, BF16, F32),
        ("lower", F32, BF16, BF16, BF16),
        ("fp32", BF16, BF16, F32, F32),
        ("fp32", BF16, F32, F32, F32),
        ("rest", BF16, F32, BF16, F32),
        ("rest", F32, BF16, F32, BF16),
    ],
)
def test_arguments_of_norms(call, order, action, given, others, input_to, affine_to):
    """D14, F61, F62, F132: statistics are never cast, weight and bias in fp32 only, nothing there beside statistics of a low dtype."""
    if action == "fp32" and others != F32 and "mean" in order:
        input_to, affine_to = given, others
    names = [
        "batch_norm", "instance_norm", "layer_norm", "group_norm", "native_batch_norm", "_native_batch_norm_legit",
        "_native_batch_norm_legit_no_training", "_batch_norm_impl_index", "cudnn_batch_norm", "miopen_batch_norm",
        "native_layer_norm", "native_group_norm",
    ]  # fmt: skip
    policy(rest="first_input", **({action: names} if action != "rest" else {}))
    tensors = NormTensors(given, others)
    kinds = {
        "input": input_to,
        "weight": affine_to,
        "bias": affine_to,
        "wide": affine_to,
        "mean": others,
        "var": others,
    }
    args, kwargs = arrived(lambda: call(tensors))
    reached = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    expected = order.split()
    if kwargs:  # torch names all that it was given
        assert sorted(str(t.dtype) for t in reached) == sorted(str(kinds[name]) for name in expected)
    else:
        assert [t.dtype for t in reached] == [kinds[name] for name in expected]
    statistics = [tensors.mean, tensors.var]
    assert sum(any(t is s for s in statistics) for t in reached) == sum(name in ("mean", "var") for name in expected)


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize(
    "make", [nn.BatchNorm2d, functools.partial(nn.InstanceNorm2d, track_running_stats=True)], ids=["batch", "instance"]
)
def test_running_statistics_are_kept(make, level):
    """F61."""
    module, twin = make(2), make(2)
    hmp.convert(opt_level=level)
    mean, given = module.running_mean, image() + 3
    result = module(given)
    hmp.revert()
    by_hand = twin(given.to(BF16 if level == "O1" else F32))
    assert module.running_mean is mean
    assert mean.dtype == F32
    assert torch.equal(mean, twin.running_mean)
    assert torch.equal(module.running_var, twin.running_var)
    assert mean.abs().min() > 0.3
    assert torch.equal(result, by_hand)


def test_running_statistics_are_kept_of_the_op_below():
    """D14: a name that is reached by its own home too."""
    policy(lower=["native_batch_norm"])
    mean, var = torch.zeros(2), torch.ones(2)
    result, *_ = torch.native_batch_norm(image() + 3, torch.ones(2), torch.zeros(2), mean, var, True, 0.1, 1e-5)
    assert result.dtype == BF16
    assert mean.abs().min() > 0.3


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("lists", [{"fp32": ["batch_norm", "instance_norm"]}, {"rest": "fp32"}], ids=["listed", "rest"])
@pytest.mark.parametrize(
    "make", [nn.BatchNorm2d, functools.partial(nn.InstanceNorm2d, track_running_stats=True)], ids=["batch", "instance"]
)
def test_low_statistics_leave_a_norm_in_its_dtype(make, lists, training):
    """D14: torch takes no float32 input beside bfloat16 statistics, and they are not cast."""
    module, twin = make(2).bfloat16().train(training), make(2).bfloat16().train(training)
    given = image(BF16) + 3
    expected = twin(given)
    policy(**lists)
    assert dtypes_arrived(lambda: F.batch_norm(given, module.running_mean, module.running_var)) == [BF16] * 3
    result = module(given)
    assert result.dtype == BF16
    assert torch.equal(result, expected)
    assert torch.equal(module.running_mean, twin.running_mean)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize(
    "make",
    [lambda: nn.BatchNorm2d(2), lambda: nn.InstanceNorm2d(2, affine=True), lambda: nn.LayerNorm(4), lambda: nn.GroupNorm(1, 2)],
    ids=["batch", "instance", "layer", "group"],
)  # fmt: skip
def test_norm_modules(make, training):
    hmp.convert()
    module = make().train(training)
    given = image().requires_grad_()
    result = module(given)
    result.sum().backward()
    assert result.dtype == BF16
    assert given.grad.dtype == F32
    assert {parameter.grad.dtype for parameter in module.parameters()} == {F32}
