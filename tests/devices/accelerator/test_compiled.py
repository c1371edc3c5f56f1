"""Compiled models beside uncompiled ones, and compiled models in graphs: on CUDA by mode="reduce-overhead"."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from capture import capture
from torch import nn

BF16 = torch.bfloat16
WIDTH = 128
CLOSE = {"rtol": 2.0**-6, "atol": 2.0**-6}  # two bits of bfloat16: compiled code rounds fewer results

pytestmark = [
    pytest.mark.skipif(
        not hasattr(torch.accelerator, "Graph") and not torch.cuda.is_available(),
        reason="this torch captures on CUDA alone",
    ),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # the compiler's advice on settings
]


def net(device):
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)).to(device)


@pytest.fixture
def in_graphs(accelerator):
    """The options of torch.compile."""
    torch._dynamo.reset()
    if accelerator == "cuda":
        return {"mode": "reduce-overhead"}
    import late_compiler

    return {"backend": late_compiler.in_graphs}


@pytest.fixture(params=["aot_eager", "inductor", "in graphs"])
def options(request, in_graphs):
    return in_graphs if request.param == "in graphs" else {"backend": request.param}


def change(model):
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(-1.5)


def test_inference(accelerator, front_end, options):
    """The weights change between calls."""
    region, model = front_end(), net(accelerator).eval()
    compiled, x = torch.compile(model, **options), torch.randn(8, WIDTH, device=accelerator)
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad(), region():
            y, expected = compiled(x).clone(), model(x)
        assert y.dtype == BF16
        torch.testing.assert_close(y, expected, **CLOSE)
        change(model)
        x.normal_()


def test_training(accelerator, front_end, options):
    """Compiled and uncompiled code, on weights of their own."""
    region, model, x = front_end(), net(accelerator), torch.randn(8, WIDTH, device=accelerator)
    eager = copy.deepcopy(model)
    compiled, losses = torch.compile(model, **options), []
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, eager)]
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        for each, optimizer in zip((compiled, eager), optimizers):
            with region():
                loss = F.mse_loss(each(x).float(), x)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach().clone())
    torch.testing.assert_close(losses[::2], losses[1::2], **CLOSE)
    for p, q in zip(model.parameters(), eager.parameters()):
        assert p.dtype == torch.float32
        torch.testing.assert_close(p, q, **CLOSE)


def test_captured_by_the_caller(accelerator, front_end, in_graphs):
    """A graph round a compiled model casts its weights at each replay."""
    region, model = front_end(), net(accelerator).eval()
    compiled, x = torch.compile(model), torch.randn(8, WIDTH, device=accelerator)

    def infer():
        with torch.no_grad(), region():
            return compiled(x)

    graph, y = capture(accelerator, infer)
    for _ in range(3):
        change(model)
        x.normal_()
        graph.replay()
        with torch.no_grad(), region():
            torch.testing.assert_close(y, model(x), **CLOSE)
