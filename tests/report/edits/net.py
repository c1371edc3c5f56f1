"""A small model, and a report with values of a step of it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b, self.c = nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.gelu(self.norm(self.a(x)))
        y = y + torch.exp(self.b(y)) * y
        return torch.softmax(self.c(F.relu(y)), -1)


def recorded(policy):
    torch.manual_seed(0)
    net = Net()
    if not isinstance(policy, str) and any(policy.limited.values()):
        hmp.set_policies(net, policy)
    with hmp.autocast("cpu", policy=policy), hmp.report(values=True) as report:
        out = net(torch.randn(8, 16))
        out.sum().backward()
    return report


def no_grad():
    with torch.no_grad():
        Net()(torch.randn(8, 16))


def wide_run(net, x, policy):
    with hmp.autocast("cpu", policy=policy):
        return net(x).float()


WIDE = hmp.Policy.from_ops(lower=[], rest="fp32", name="wide")


class Smooth(Net):
    """Without the kink of relu, which no derivative sees."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(F.gelu(self.b(self.norm(F.gelu(self.a(x))))))
