"""Memory of the device: steps take no more of it, and a step about as much as under torch.autocast."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

WIDTH = 128
BF16 = torch.bfloat16


def net(device):
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)).to(device)


def taken():
    torch.accelerator.synchronize()
    return torch.accelerator.memory_allocated()


def test_a_thousand_steps_without_gradients(accelerator, front_end):
    """The weights change now and then, and grad mode is off in three ways."""
    model, x = nn.Linear(WIDTH, WIDTH).to(accelerator), torch.randn(4, WIDTH, device=accelerator)
    region, after = front_end(BF16), []
    for turn in range(1_000):
        mode = (torch.no_grad, torch.inference_mode)[turn // 5 % 2]
        with mode(), region():
            model(x)
        if turn % 50 == 49:
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(0.99)
        if turn % 100 == 99:
            after.append(taken())
    assert after == [after[0]] * 10


def test_steps_of_training(accelerator, front_end):
    model, x = net(accelerator), torch.randn(4, WIDTH, device=accelerator)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    region, after = front_end(BF16), []
    for _ in range(40):
        with region():
            loss = F.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        del loss
        after.append(taken())
    assert after[10:] == [after[10]] * 30
