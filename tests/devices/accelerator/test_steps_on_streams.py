"""What runs a step several times, of steps that use a stream of their own: it finds the same, and puts the weights back."""

from __future__ import annotations

import contextlib
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp

WIDTH = 128


def busy(microseconds):
    if torch.accelerator.current_accelerator().type == "cuda":
        torch.cuda._sleep(2_000 * microseconds)
    else:
        torch.ops.late.sleep(microseconds)


@contextlib.contextmanager
def behind(stream):
    """The late device has the stream do nothing before somebody waits for it. CUDA's is busy at the beginning."""
    is_cuda = stream.device.type == "cuda"
    with stream:
        busy(150_000) if is_cuda else torch.ops.late.set_lazy(True)
    yield
    with stream:
        is_cuda or torch.ops.late.set_lazy(False)


INSTRUMENTS = {
    "tune": lambda step: f"{hmp.tune(step, budget=0.01).error:.3g}",
    "compare": lambda step: [
        (row.op, row.calls, f"{row.total or 0:.3g}") for row in hmp.compare(step, None, "balanced").rows
    ],
    "nonfinite": lambda step: str(hmp.find_nonfinite(step)),
}


KINDS = ["inference", "training", "sums", "sums of a thread"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [*(("compare", kind) for kind in KINDS), ("nonfinite", "training"), ("tune", "training"), ("tune", "inference")],
)
def test_it_is_as_on_the_current_stream(accelerator, name, kind):
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH))
    model.to(accelerator)
    batch, optimizer = torch.randn(16, WIDTH, device=accelerator), torch.optim.SGD(model.parameters(), lr=0.5)
    # What steps add to. No instrument reads what a thread of the step does.
    seen = torch.zeros(WIDTH, device=accelerator)
    side = torch.Stream(accelerator)

    def training():
        loss = F.mse_loss(model(batch), batch)
        loss.backward()
        busy(10_000)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def add(stream):
        with stream:
            busy(10_000)
            seen.add_(1.0)

    def sums():
        y = model(batch) + seen
        if kind == "sums of a thread":
            thread = threading.Thread(target=add, args=(torch.accelerator.current_stream(),))
            thread.start()
            thread.join()
        else:
            torch._foreach_add_([seen], 1.0)
        return y

    def step():
        if kind == "inference":
            return model(batch)
        if kind == "training":
            return training()
        with torch.no_grad():
            return sums()

    def on_side():
        with side:
            return step()

    before = [each.detach().cpu() for each in (seen, *model.parameters())]
    expected = INSTRUMENTS[name](step)
    for stream in (torch.accelerator.current_stream(), side):
        torch.accelerator.synchronize()
        with behind(stream):
            assert INSTRUMENTS[name](on_side) == expected
        torch.accelerator.synchronize()
        if name != "nonfinite":
            assert all(torch.equal(p.detach().cpu(), q) for p, q in zip((seen, *model.parameters()), before))
