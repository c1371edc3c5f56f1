"""What runs a step several times, of steps that use a stream of their own: it finds the same, and puts the weights back."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp

WIDTH = 128


def busy(microseconds=20_000):
    if torch.accelerator.current_accelerator().type == "cuda":
        torch.cuda._sleep(2_000 * microseconds)
    else:
        torch.ops.late.sleep(microseconds)


INSTRUMENTS = {
    "tune": lambda step: hmp.tune(step, budget=0.01).error <= 0.01,
    "compare": lambda step: [(row.op, row.calls) for row in hmp.compare(step, None, "balanced").rows],
    "nonfinite": hmp.find_nonfinite,
}


@pytest.mark.parametrize("kind", ["inference", "training"])
@pytest.mark.parametrize("name", INSTRUMENTS)
def test_it_is_as_on_the_current_stream(accelerator, name, kind):
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)).to(
        accelerator
    )
    x, optimizer = torch.randn(16, WIDTH, device=accelerator), torch.optim.SGD(model.parameters(), lr=0.5)
    side = torch.Stream(accelerator)

    def step():
        if kind == "inference":
            return model(x)
        loss = F.mse_loss(model(x), x)
        loss.backward()
        busy()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def on_side():
        with side:
            busy()
            return step()

    before = [p.detach().cpu() for p in model.parameters()]
    answers = []
    for each in (step, on_side, on_side):
        torch.accelerator.synchronize()
        busy(150_000)  # the current stream is behind: what is noted before the step is copied late
        answers.append(INSTRUMENTS[name](each))
        if name != "nonfinite":
            assert all(torch.equal(p.detach().cpu(), q) for p, q in zip(model.parameters(), before))
    assert answers == [answers[0]] * 3
