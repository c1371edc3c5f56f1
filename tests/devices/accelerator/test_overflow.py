"""Overflow of float16 on a device: where it happens is found and named, as on the CPU."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp

FP16 = torch.float16


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(128, 128), nn.Linear(128, 128)

    def forward(self, x):
        return self.second(self.first(x) * 20_000).float()


POLICY = hmp.Policy.load("torch-cuda").with_low_dtype(FP16)
REGIONS = {
    "convert": lambda _: contextlib.nullcontext(),
    "region": lambda device: hmp.autocast(device, FP16, policy=POLICY),
    "torch": lambda device: torch.autocast(device, FP16),
}


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("front_end", REGIONS)
def test_it_is_found_and_named(accelerator, front_end, backward):
    answers = []
    for device in ("cpu", accelerator):
        torch.manual_seed(0)
        model, x = Model(), torch.randn(8, 128) * 50
        model, x = model.to(device), x.to(device)
        if front_end == "convert":
            hmp.convert(policy=POLICY)

        def run(device=device, model=model, x=x):
            with REGIONS[front_end](device):
                y = model(x)
            loss = F.mse_loss(y, x)
            if backward:
                loss.backward()
            return loss

        found = hmp.find_nonfinite(run)
        hmp.revert()
        answers.append((found.op, found.module))
    assert answers == [("mul", "Model")] * 2
