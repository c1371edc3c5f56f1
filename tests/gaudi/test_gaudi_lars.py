"""FusedLars and FusedResourceApplyMomentum against the formulas of arXiv 1708.03888 and of MLPerf's ResNet-50, written out in float64."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

from habana_mp import hmp
from habana_mp._gaudi.hpex.optimizers import FusedLars, FusedResourceApplyMomentum

MASK = [True, False, True, False]
SHAPES = [(4, 3), (4,), (2, 4), (2,)]


def parameters(dtype=torch.float32):
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape).to(dtype)) for shape in SHAPES]


def give_gradients(params, seed):
    torch.manual_seed(seed)
    for p in params:
        p.grad = torch.randn(p.shape).to(p.dtype)


def reference(steps, lrs, *, momentum, decay, lars, eeta=0.001, eps=0.0):
    params = [p.detach().double() for p in parameters()]
    moments = [torch.zeros_like(p) for p in params]
    for step, lr in zip(range(steps), lrs, strict=True):
        torch.manual_seed(step)
        for i, p in enumerate(params):
            grad, rate = torch.randn(p.shape).double(), lr
            if lars and MASK[i]:
                rate *= eeta * p.norm() / (grad.norm() + decay * p.norm() + eps)
            if not lars or MASK[i]:
                grad = grad + decay * p
            moments[i] = momentum * moments[i] - rate * grad
            p += moments[i]
    return params


@pytest.mark.parametrize("lars", [False, True], ids=["momentum", "lars"])
@pytest.mark.parametrize("converted", [False, True], ids=["plain", "converted"])
def test_as_written(lars, converted):
    if converted:
        hmp.convert(policy="hmp-o2")
    params = parameters()
    optimizer = FusedResourceApplyMomentum(params, lr=2.0, momentum=0.9, weight_decay=5e-5)
    if lars:
        optimizer = FusedLars(optimizer, MASK, eps=0.0)
    scheduler = StepLR(optimizer, 2, gamma=0.1)
    for step in range(5):
        give_gradients(params, step)
        grads = [p.grad for p in params]
        before = [grad.clone() for grad in grads]
        optimizer.step()
        assert all(
            p.grad is grad and torch.equal(grad, was) for p, grad, was in zip(params, grads, before, strict=True)
        )
        scheduler.step()
    expected = reference(5, [2.0, 2.0, 0.2, 0.2, 0.02], momentum=0.9, decay=5e-5, lars=lars)
    for ours, theirs in zip(params, expected, strict=True):
        torch.testing.assert_close(ours.detach().double(), theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("zero", ["weight", "gradient"])
def test_without_a_norm_there_is_no_scale(zero):
    p = nn.Parameter(torch.zeros(3) if zero == "weight" else torch.ones(3))
    optimizer = FusedLars(torch.optim.SGD([p], lr=0.5, weight_decay=0.1), [True])
    p.grad = torch.zeros(3) if zero == "gradient" else torch.ones(3)
    optimizer.step()
    torch.testing.assert_close(p.detach(), torch.full((3,), -0.5 if zero == "weight" else 0.95))


def test_it_is_one_with_the_optimizer():
    params = parameters()
    inner = torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.1)
    optimizer = FusedLars(inner, MASK)
    optimizer.param_groups[0]["lr"] = 0.2
    give_gradients(params, 0)
    optimizer.step()
    assert (inner.param_groups[0]["lr"], inner.param_groups[0]["weight_decay"]) == (0.2, 0.1)
    saved = copy.deepcopy(optimizer.state_dict())
    again = FusedLars(torch.optim.SGD(parameters(), lr=1.0, momentum=0.9), MASK)
    again.load_state_dict(saved)
    assert again.param_groups[0]["lr"] == 0.2
    assert again.param_groups is again.optimizer.param_groups
    assert again.state is again.optimizer.state
    optimizer.zero_grad()
    assert all(p.grad is None for p in params)


def test_a_closure_runs_once_and_with_gradients():
    p = nn.Parameter(torch.ones(2))
    optimizer = FusedLars(FusedResourceApplyMomentum([p], lr=0.1), [False])
    calls = []

    def closure():
        calls.append(1)
        optimizer.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2.0
    assert len(calls) == 1
    torch.testing.assert_close(p.detach(), torch.full((2,), 0.8))


def test_an_error_leaves_gradients_and_groups():
    params = parameters()
    inner = torch.optim.SGD(params, lr=0.1, weight_decay=0.1)
    optimizer = FusedLars(inner, MASK)
    give_gradients(params, 0)
    grads = [p.grad for p in params]
    inner.step = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        optimizer.step()
    assert [p.grad is grad for p, grad in zip(params, grads, strict=True)] == [True] * 4
    assert inner.param_groups[0]["weight_decay"] == 0.1


def test_refused():
    with pytest.raises(ValueError, match="skip_mask must have one entry for each parameter: 4 of the optimizer, not 1"):
        FusedLars(torch.optim.SGD(parameters(), lr=0.1), [True])
    with pytest.raises(ValueError, match="momentum must be a number, 0 or more, not -1"):
        FusedResourceApplyMomentum(parameters(), lr=0.1, momentum=-1)


def test_a_state_that_the_optimizer_loads_is_its_own():
    p = nn.Parameter(torch.ones(1))
    inner = torch.optim.SGD([p], lr=1.0, weight_decay=0.1)
    optimizer = FusedLars(inner, [False])
    inner.load_state_dict(copy.deepcopy(inner.state_dict()))
    p.grad = torch.full((1,), 0.001)
    optimizer.step()
    torch.testing.assert_close(p.detach(), torch.full((1,), 0.999))
    assert inner.param_groups[0]["weight_decay"] == 0.1


def test_a_group_that_the_mask_does_not_know():
    optimizer = FusedLars(torch.optim.SGD(parameters(), lr=0.1), MASK)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    with pytest.raises(ValueError, match="one entry for each parameter: 5 of the optimizer, not 4"):
        optimizer.step()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=["copy", "pickle"])
def test_a_copy_steps_alike(copied):
    params = parameters()
    optimizer = FusedLars(FusedResourceApplyMomentum(params, lr=0.1, momentum=0.9, weight_decay=0.1), MASK)
    give_gradients(params, 0)
    optimizer.step()
    again = copied(optimizer)
    theirs = [p for group in again.param_groups for p in group["params"]]
    for each, its in ((optimizer, params), (again, theirs)):
        give_gradients(its, 1)
        each.step()
    for p, other in zip(params, theirs, strict=True):
        assert torch.equal(p, other)
    assert again.optimizer.param_groups is again.param_groups
