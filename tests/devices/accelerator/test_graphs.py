"""Graphs captured under a policy, and what the weight cache does then."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
import torch.nn.functional as F
from capture import capture
from torch import nn

from habana_mp import hmp

BF16, FP16 = torch.bfloat16, torch.float16
WIDTH = 128
CLOSE = {"rtol": 2.0**-7, "atol": 2.0**-7}  # a bit of bfloat16: a captured product may sum in another order

pytestmark = pytest.mark.skipif(
    not hasattr(torch.accelerator, "Graph") and not torch.cuda.is_available(),
    reason="this torch captures on CUDA alone",
)


def net(device):
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)).to(device)


def change(model):
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(-1.5)


@pytest.mark.parametrize("warm_ups", [0, 3], ids=["first call inside", "warm"])
@pytest.mark.parametrize("around", ["region inside", "region around"])
def test_captured_inference(accelerator, front_end, around, warm_ups):
    """A replay casts the weights anew, so it sees that they have changed. A copy that was cached before is not in the graph."""
    if front_end.is_torch and around == "region around" and warm_ups:
        pytest.skip("torch.autocast captures its copies, unless cache_enabled is False")
    region, model = front_end(), net(accelerator).eval()
    x = torch.randn(8, WIDTH, device=accelerator)
    outer = region if around == "region around" else contextlib.nullcontext

    def infer():
        with torch.no_grad(), region():
            return model(x)

    if warm_ups:
        infer()  # so that there are copies of this stream
    with outer():
        graph, y = capture(accelerator, infer, warm_ups)
    for _ in range(3):
        change(model)
        x.normal_()
        graph.replay()
        torch.testing.assert_close(y, infer(), **CLOSE)


def test_nothing_is_kept_while_a_graph_is_captured(accelerator):
    hmp.convert()
    p, x = nn.Parameter(torch.randn(WIDTH, WIDTH, device=accelerator)), torch.randn(4, WIDTH, device=accelerator)
    with torch.no_grad():
        capture(accelerator, lambda: F.linear(x, p), warm_ups=0)
    info = hmp.cache.info()
    assert (info.entries, info.hits, info.misses) == (0, 0, 0)


def test_a_capture_takes_no_copy_of_its_stream(accelerator, front_end):
    """What was cast before the capture would be in the graph as it was then."""
    region, p = front_end(), nn.Parameter(torch.randn(WIDTH, WIDTH, device=accelerator))
    x = torch.randn(4, WIDTH, device=accelerator)

    def infer():
        with torch.inference_mode(), region():
            return F.linear(x, p)

    graph, y = capture(accelerator, infer)
    p.data.neg_()
    graph.replay()
    expected = F.linear(x.cpu().to(BF16), p.detach().cpu().to(BF16)).float()
    torch.testing.assert_close(y.cpu().float(), expected, **CLOSE)


@pytest.mark.parametrize("fused", [False, True], ids=["for loop", "fused"])
def test_a_captured_training_step(accelerator, front_end, fused):
    """Forward, backward and the optimizer's step in one graph. After a replay eager code sees the new weights."""
    region, model = front_end(), net(accelerator)
    x, target = (torch.randn(8, WIDTH, device=accelerator) for _ in range(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with region():
            loss = F.mse_loss(model(x).float(), target)
        loss.backward()
        optimizer.step()
        return loss

    eager = copy.deepcopy(model)
    graph, loss = capture(accelerator, step)
    model.load_state_dict(eager.state_dict())
    other = torch.optim.SGD(eager.parameters(), lr=0.1)
    with torch.no_grad(), region():
        model(x)  # copies of the weights as they are now
    for _ in range(4):
        graph.replay()
        with region():
            expected = F.mse_loss(eager(x).float(), target)
        expected.backward()
        other.step()
        other.zero_grad()
        torch.testing.assert_close(loss, expected, **CLOSE)
        for p, q in zip(model.parameters(), eager.parameters()):
            torch.testing.assert_close(p, q, **CLOSE)
        with torch.no_grad(), region():
            torch.testing.assert_close(model(x), eager(x), **CLOSE)


def test_eager_code_sees_what_a_replay_has_written(accelerator, front_end):
    """With nothing in between that would end the copies."""
    region, p = front_end(), nn.Parameter(torch.randn(WIDTH, WIDTH, device=accelerator))
    x = torch.randn(4, WIDTH, device=accelerator)

    def write():
        with torch.no_grad():
            p.mul_(-1.5)

    graph, _ = capture(accelerator, write)
    for _ in range(3):
        with torch.no_grad(), region():
            F.linear(x, p)
        graph.replay()
        with torch.no_grad(), region():
            y = F.linear(x, p)
        expected = F.linear(x.cpu().to(BF16), p.detach().cpu().to(BF16)).float()
        torch.testing.assert_close(y.cpu().float(), expected, rtol=2.0**-6, atol=2.0**-6)


def test_a_scaler_in_a_graph(accelerator, front_end):
    """Scaled loss, unscaled gradients and what of them is infinite are in the graph; the step and the update follow it."""
    region, model = front_end(FP16), net(accelerator)
    x = torch.randn(8, WIDTH, device=accelerator)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), hmp.GradScaler(accelerator, init_scale=2.0**10)

    def backward():
        for p in model.parameters():
            p.grad = None if p.grad is None else p.grad.zero_()
        with region():
            y = model(x)
        scaler.scale(F.mse_loss(y.float(), x)).backward()

    graph, _ = capture(accelerator, backward)
    changed = []
    for factor in (1.0, float("inf"), 1.0):
        x.copy_(torch.randn(8, WIDTH) * factor)
        before = model[0].weight.detach().clone()
        graph.replay()
        scaler.step(optimizer)
        scaler.update()
        changed.append(not torch.equal(before, model[0].weight))
    assert changed == [True, False, True]
    assert scaler.get_scale() == 2.0**9


@pytest.mark.parametrize("new_scaler", [hmp.GradScaler, torch.amp.GradScaler], ids=["hmp", "torch"])
def test_a_whole_step_with_a_scaler_in_a_graph(accelerator, front_end, new_scaler):
    """The step, too, which a fused optimizer skips on the device, and the update of the scale: nothing of it asks the host."""
    region, model = front_end(FP16), net(accelerator)
    eager, x = copy.deepcopy(model), torch.randn(8, WIDTH, device=accelerator)
    scale = {"init_scale": 2.0**10, "growth_interval": 3}

    def training(model):
        optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1, fused=True), new_scaler(accelerator, **scale)

        def step():
            optimizer.zero_grad(set_to_none=True)
            with region():
                y = model(x)
            scaler.scale(F.mse_loss(y.float(), x)).backward()
            scaler.step(optimizer)
            scaler.update()

        return step, scaler

    step, scaler = training(model)
    graph, _ = capture(accelerator, step, warm_ups=1)
    step, expected = training(eager)
    step()
    scales = []
    for factor in (1.0, float("inf"), 1.0, 1.0, 1.0):
        x.copy_(torch.randn(8, WIDTH) * factor)
        graph.replay()
        step()
        assert scaler.get_scale() == expected.get_scale()
        scales.append(scaler.get_scale())
        for p, q in zip(model.parameters(), eager.parameters()):
            torch.testing.assert_close(p, q, **CLOSE)
    assert scales == [2.0**10, 2.0**9, 2.0**9, 2.0**9, 2.0**10]
