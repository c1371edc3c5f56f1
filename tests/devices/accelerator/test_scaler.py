"""Gradient scalers with float16: hmp.GradScaler beside torch.amp.GradScaler, which do the same."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp

WIDTH = 128
FP16 = torch.float16
SCALERS = {"hmp": hmp.GradScaler, "torch": torch.amp.GradScaler}


@pytest.fixture(params=SCALERS)
def new_scaler(request, accelerator):
    return lambda **options: SCALERS[request.param](accelerator, **{"init_scale": 2.0**10, **options})


@pytest.fixture
def model(accelerator):
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)).to(accelerator)


@pytest.fixture
def x(accelerator):
    return torch.randn(8, WIDTH, device=accelerator)


def snapshot(model):
    return [p.detach().clone() for p in model.parameters()]


def has_changed(model, before):
    return not all(torch.equal(p, q) for p, q in zip(model.parameters(), before))


def test_steps_with_infinite_gradients_are_skipped(front_end, new_scaler, model, x):
    scaler, optimizer, region = new_scaler(), torch.optim.SGD(model.parameters(), lr=0.1), front_end(FP16)
    changed, scales = [], []
    for factor in (1.0, float("inf"), 1.0, float("nan"), 1.0):
        before = snapshot(model)
        with region():
            y = model(x)
        assert y.dtype == FP16
        scaler.scale(F.mse_loss(y.float(), x) * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        changed.append(has_changed(model, before))
        scales.append(scaler.get_scale())
    assert changed == [True, False, True, False, True]
    assert scales == [2.0**10, 2.0**9, 2.0**9, 2.0**8, 2.0**8]


def scales_after(steps, scaler, optimizer, region, model, x):
    scales = []
    for _ in range(steps):
        with region():
            y = model(x)
        scaler.scale(F.mse_loss(y.float(), x)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
    return scales


def test_an_overflow_of_float16_itself(front_end, new_scaler, model, x):
    """The scale falls until the gradients fit."""
    scaler, optimizer = new_scaler(init_scale=2.0**40), torch.optim.SGD(model.parameters(), lr=0.1)
    scales = scales_after(40, scaler, optimizer, front_end(FP16), model, x)
    assert scales[-1] == scales[-2] < 2.0**34
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_the_scale_grows(front_end, new_scaler, model, x):
    scaler, optimizer = new_scaler(growth_interval=2), torch.optim.SGD(model.parameters(), lr=0.0)
    scales = scales_after(5, scaler, optimizer, front_end(FP16), model, x)
    assert scales == [2.0**10, 2.0**11, 2.0**11, 2.0**12, 2.0**12]


def test_several_optimizers(front_end, new_scaler, accelerator, x):
    """Each is skipped by its own gradients; the scale falls if any was."""
    models = [nn.Linear(WIDTH, WIDTH).to(accelerator) for _ in range(2)]
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in models]
    scaler, region = new_scaler(), front_end(FP16)
    before = [snapshot(each) for each in models]
    with region():
        results = [each(x).float() for each in models]
    losses = [F.mse_loss(y, x) for y in results]
    scaler.scale(losses[0]).backward()
    scaler.scale(losses[1] * float("inf")).backward()
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    assert [has_changed(*each) for each in zip(models, before)] == [True, False]
    assert scaler.get_scale() == 2.0**9


@pytest.mark.parametrize("fused", [False, True], ids=["for loop", "fused"])
def test_unscaled_clipped_and_accumulated(front_end, new_scaler, model, x, fused):
    """Two backward passes for a step, whose gradients are clipped. It is the step of float32 but for the rounding."""
    exact = copy.deepcopy(model)
    batches = [torch.randn_like(x) for _ in range(6)]
    reference = torch.optim.SGD(exact.parameters(), lr=0.1)
    for number, batch in enumerate(batches):
        F.mse_loss(exact(batch), batch).backward()
        if number % 2 == 1:
            nn.utils.clip_grad_norm_(exact.parameters(), 0.1)
            reference.step()
            reference.zero_grad()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused), new_scaler()
    region = front_end(FP16)
    for number, batch in enumerate(batches):
        with region():
            y = model(batch)
        scaler.scale(F.mse_loss(y.float(), batch)).backward()
        if number % 2 == 1:
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            assert 0.1 < norm.item() < 10
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    for p, q in zip(model.parameters(), exact.parameters()):
        torch.testing.assert_close(p, q, rtol=2e-3, atol=2e-4)
