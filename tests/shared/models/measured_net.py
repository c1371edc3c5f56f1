"""A small net, its loss and what is in force round it: what the tests of values measure."""

from __future__ import annotations

import contextlib

import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp

BF16 = torch.bfloat16
NORM_WIDE = hmp.Policy.load("torch-cpu").with_edits("+layer_norm:fp32")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.norm = nn.LayerNorm(32)
        self.last = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.gelu(self.norm(self.first(x))))


X = torch.randn(64, 16, generator=torch.Generator().manual_seed(1))
TARGET = torch.randint(0, 4, (64,), generator=torch.Generator().manual_seed(2))


def loss_of(model: nn.Module) -> torch.Tensor:
    return F.cross_entropy(model(X).float(), TARGET)


def region(front_end: str, policy: hmp.Policy | str = "torch-cpu"):
    if front_end == "convert":
        hmp.convert(policy=policy)
        return contextlib.nullcontext()
    return hmp.autocast("cpu", policy=policy)


def relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return ((got.double() - wanted.double()).norm() / wanted.double().norm()).item()
