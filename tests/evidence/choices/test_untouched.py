"""A report that follows choices leaves the program as it is: its gradients, its code, its memory."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from habana_mp import hmp
from tests.evidence.choices.experts import (
    LOW,
    MIXES,
    WIDTH,
    Experts,
    batch,
    by_loop,
    run,
    target,
)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("mix", MIXES)
def test_looking_at_choices_changes_nothing(mix):
    """Gradients, random numbers, and how often hooks of modules run."""
    found = []
    for looks in (False, True):
        model, ran = Experts(mix), []
        model.head.weight.register_hook(lambda gradient, ran=ran: ran.append("weight") or gradient)
        torch.manual_seed(1)
        with hmp.report(values=looks):
            loss = functional.cross_entropy(run(model, LOW, 0), target(0))
            loss.backward()
        found.append([loss, torch.rand(4), *(each.grad for each in model.parameters()), torch.tensor(len(ran))])
    for plain, looked_at in zip(*found, strict=True):
        assert (plain is None) == (looked_at is None)
        assert plain is None or torch.equal(plain, looked_at)


class Doubled(torch.autograd.Function):
    ran = 0

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        Doubled.ran += 1
        return 2 * gradient


def with_gradient(model: Experts, x: torch.Tensor) -> torch.Tensor:
    return x + model.gate.bias.sum() * 0


def with_function(model: Experts, x: torch.Tensor) -> torch.Tensor:
    return Experts.forward(model, Doubled.apply(with_gradient(model, x)))


def with_module_hook(model: Experts, x: torch.Tensor) -> torch.Tensor:
    def count(*_: object) -> None:
        Doubled.ran += 1

    handle = model.gate.register_full_backward_hook(count)
    found = Experts.forward(model, with_gradient(model, x))
    handle.remove()
    return found


def with_tensor_hook(model: Experts, x: torch.Tensor) -> torch.Tensor:
    def count(_: torch.Tensor) -> None:
        Doubled.ran += 1

    x = with_gradient(model, x)
    x.register_hook(count)
    return Experts.forward(model, x)


def with_checkpoint(model: Experts, x: torch.Tensor) -> torch.Tensor:
    def forward(x: torch.Tensor) -> torch.Tensor:
        Doubled.ran += 1
        return Experts.forward(model, x)

    found = checkpoint(forward, x, use_reentrant=False)
    Doubled.ran -= 1
    return found


@pytest.mark.parametrize("forward", [with_function, with_module_hook, with_tensor_hook, with_checkpoint])
def test_code_of_the_user_runs_once_and_the_head_names_the_op(forward):
    """No backward pass of ours may run it. Then it is not known what follows from the choices, and the report says so."""
    model = Experts(by_loop)
    Doubled.ran = 0
    with hmp.report(values=True) as report:
        with hmp.autocast("cpu", policy=LOW):
            outputs = forward(model, batch(0))
        functional.cross_entropy(outputs.float(), target(0)).backward()
    assert Doubled.ran == 1
    assert "without what topk may choose otherwise" in str(report)


def test_a_checkpoint_before_a_choice_runs_again_in_the_backward_pass_of_the_user_alone():
    """A pass of ours through it raised an error inside of ``backward``."""
    below, router, values = nn.Linear(16, 32), nn.Linear(32, 8), nn.Parameter(torch.randn(8, 32))
    with hmp.report(values=True) as report, hmp.autocast("cpu", policy=LOW):
        h = checkpoint(below, torch.randn(64, 16), use_reentrant=False)
        scores, chosen = router(h).topk(2, -1)
        (values[chosen] * scores[..., None]).square().mean().backward()
    assert below.weight.grad is not None
    assert "without what topk may choose otherwise" in str(report)


@pytest.mark.parametrize(
    "change",
    [lambda y: y * 100, lambda y: y.mul_(100), lambda y: y.detach().mul_(100), lambda y: y.contiguous().mul_(100)],
    ids=["another tensor", "in place", "in place, detached", "in place, contiguous"],
)
def test_a_cast_is_a_copy_in_the_runs_beside(change):
    """In float32 it would be none, and what is written to it would come to the loss."""
    scores = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
    weight = torch.ones(8, 8).triu().requires_grad_()
    with hmp.report(values=True) as report, hmp.autocast("cpu", policy=hmp.Policy.from_ops(lower=["mm"])):
        values, _ = torch.mm(scores, weight).topk(2)
        assert values.dtype == torch.bfloat16
        changed = change(values.float())
        (values.float().square().mean() + 0 * changed.sum()).backward()
    (worth,) = report.to_dict()["choices_worth"]
    assert worth["squares"] < 1e-3


def test_forward_passes_without_a_backward_one_keep_few_graphs():
    """What they keep is gone with the report at the latest."""
    model, kept, weight = Experts(by_loop), [], nn.Parameter(torch.ones(WIDTH))
    with hmp.report(values=True):
        for number in range(24):
            x = batch(number % 4)
            kept.append(weakref.ref(x))
            with hmp.autocast("cpu", policy=LOW):
                outputs = model(x * weight)  # it saves x
        del outputs, x
        assert sum(each() is not None for each in kept) <= 16
    gc.collect()
    assert sum(each() is not None for each in kept) == 0


def test_an_accuracy_costs_no_backward_pass():
    """Nothing depends on its argmax."""
    model = nn.Linear(WIDTH, 8)
    with hmp.report(values=True) as report:
        for number in range(2):
            logits = run(model, LOW, number)
            accuracy = (logits.argmax(-1) == target(number)).float().mean()
            functional.cross_entropy(logits, target(number)).backward()
    assert 0 <= float(accuracy) <= 1
    data = report.to_dict()
    assert [each["passes"] for each in data["losses"] if "choice" in each] == [0]
    assert data["choices_worth"] == []


@pytest.mark.parametrize(("of_result", "named"), [(False, False), (True, True)], ids=["labels", "an accuracy"])
def test_a_choice_by_numbers_that_nothing_has_rounded_is_not_named(of_result, named):
    model, x = nn.Linear(8, 4), torch.randn(16, 8)
    with hmp.report(values=True) as report:
        labels = (x[:, :4] * 2).argmax(1)
        with hmp.autocast("cpu", policy="balanced"):
            result = model(x)
        if of_result:
            result.float().argmax(1)
        functional.cross_entropy(result, labels).backward()
    assert ("what it chooses may be" in " ".join(str(report).split())) == named
