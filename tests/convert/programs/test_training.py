"""Models under convert against the same models with casts written by hand (hand_casts.py), bit for bit: results and gradients."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from hand_casts import MODELS, POLICIES, Hand, convert, made
from torch import nn

from habana_mp import hmp

BF16, FP32 = torch.bfloat16, torch.float32


def outcome(model, run, loss, x, y):
    """Everything that a training step leaves: output, loss, gradients, buffers."""
    torch.manual_seed(1)  # dropout
    out = run(x)
    value = loss(out, y)
    value.backward()
    gradients = {
        f"{name}.grad": parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None
    }
    return {"out": out, "loss": value, **gradients, **dict(model.named_buffers())}


def assert_same_bits(ours, expected):
    assert ours.keys() == expected.keys()
    differing = {
        name: (ours[name].dtype, expected[name].dtype)
        for name in ours
        if ours[name].dtype != expected[name].dtype or not torch.equal(ours[name], expected[name])
    }
    assert differing == {}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", MODELS)
def test_a_step_equals_hand_written_casts(name, policy):
    model, x, y = made(name)
    hand = Hand(policy)
    by_hand = outcome(model, lambda x: model.by_hand(model, hand, x), hand.cross_entropy, x, y)
    model, x, y = made(name)
    convert(policy)
    converted = outcome(model, model, F.cross_entropy, x, y)
    assert_same_bits(converted, by_hand)
    assert len([name for name in converted if name.endswith(".grad")]) == len(list(model.parameters()))


@pytest.mark.parametrize("name", MODELS)
def test_the_hand_written_model_is_the_model(name):
    """Without casts the two are one: what the tests above compare is the casts."""
    model, x, y = made(name)
    by_hand = outcome(model, lambda x: model.by_hand(model, Hand(None), x), F.cross_entropy, x, y)
    model, x, y = made(name)
    assert_same_bits(outcome(model, model, F.cross_entropy, x, y), by_hand)


@pytest.mark.parametrize(
    ("policy", "name", "dtype"),
    [
        ("hmp", "cnn", BF16),
        ("hmp", "block", BF16),
        ("hmp-o1", "bert-eager", BF16),
        ("hmp-resnet50", "cnn", BF16),
        ("O2", "block", BF16),
    ],
)
def test_dtypes_of_a_step_f242_f255(policy, name, dtype):
    model, x, y = made(name)
    convert(policy)
    out = outcome(model, model, F.cross_entropy, x, y)
    assert (out["out"].dtype, out["loss"].dtype) == (dtype, FP32)
    assert {value.dtype for key, value in out.items() if key.endswith(".grad")} == {FP32}


@pytest.mark.parametrize("grad", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", MODELS)
def test_evaluation_equals_hand_written_casts(name, policy, grad):
    model, x, _ = made(name)
    model.eval()
    convert(policy)
    with grad():
        converted = model(x)
        hmp.revert()
        by_hand = model.by_hand(model, Hand(policy), x)
    assert (converted.dtype, converted.requires_grad) == (by_hand.dtype, False)
    assert torch.equal(converted, by_hand)


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1),
    "sgd-momentum-foreach": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, foreach=True),
    "sgd-fused": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, fused=True),
    "adamw-single": lambda parameters: torch.optim.AdamW(parameters, 0.01, foreach=False),
    "adamw-foreach": lambda parameters: torch.optim.AdamW(parameters, 0.01, foreach=True),
    "adamw-fused": lambda parameters: torch.optim.AdamW(parameters, 0.01, fused=True),
    "adam-capturable-amsgrad": lambda parameters: torch.optim.Adam(parameters, 0.01, amsgrad=True),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, 0.01),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, 0.01),
}


def train(model, run, loss, optimizer, x, y, steps=3):
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(run(x), y)
        value.backward()
        with hmp.disable_casts():
            optimizer.step()
        losses.append(value.detach())
    return [*losses, *model.parameters(), *model.buffers()]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_with_the_step_in_disable_casts_f246(optimizer):
    model, x, y = made("block")
    model.eval()
    hand = Hand("hmp")
    by_hand = train(
        model,
        lambda x: model.by_hand(model, hand, x),
        hand.cross_entropy,
        OPTIMIZERS[optimizer](model.parameters()),
        x,
        y,
    )
    model, x, y = made("block")
    model.eval()
    hmp.convert()
    converted = train(model, model, F.cross_entropy, OPTIMIZERS[optimizer](model.parameters()), x, y)
    assert all(map(torch.equal, converted, by_hand))
    assert converted[2] < converted[0]


@pytest.mark.parametrize("policy", ["hmp", "O2"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_step_outside_disable_casts_keeps_float32(optimizer, policy):
    """The guides put the step in disable_casts; left out of it, parameters and state are float32 still."""
    model, x, y = made("block")
    convert(policy)
    made_by = OPTIMIZERS[optimizer](model.parameters())
    for _ in range(2):
        made_by.zero_grad()
        F.cross_entropy(model(x), y).backward()
        made_by.step()
    state = itertools.chain.from_iterable(entry.values() for entry in made_by.state.values())
    assert {parameter.dtype for parameter in model.parameters()} == {FP32}
    assert {value.dtype for value in state if isinstance(value, torch.Tensor)} <= {FP32}


@pytest.mark.parametrize("utility", ["clip_grad_norm_", "clip_grad_value_"])
def test_gradient_clipping(utility):
    results = []
    for inside in (True, False):
        model, x, y = made("cnn")
        hmp.convert()
        F.cross_entropy(model(x), y).backward()
        if not inside:
            hmp.revert()
        with hmp.disable_casts():
            getattr(nn.utils, utility)(model.parameters(), 0.1)
        results.append([parameter.grad for parameter in model.parameters()])
    assert all(map(torch.equal, *results))
