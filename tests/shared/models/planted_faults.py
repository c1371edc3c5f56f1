"""Small models in which ops lose accuracy in a low dtype: five kinds that do, among others that do not."""

from __future__ import annotations

from collections.abc import Collection

import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp


def _uniform(seed: int, low: float, high: float) -> torch.Tensor:
    return low + (high - low) * torch.rand(64, 16, generator=torch.Generator().manual_seed(seed))


X = _uniform(1, -2, 2)
ANGLES, NEAR, LARGE, ONES = _uniform(2, 500, 1000), _uniform(3, 100, 101), _uniform(4, 36, 38), _uniform(5, 1, 1.01)
PLANTED = {
    "cos": (ANGLES, torch.cos),
    "sub": (NEAR, lambda x: torch.sub(x, 100)),  # of near numbers
    "exp": (LARGE, lambda x: torch.exp(x) * 6e-17),
    "var": (NEAR, lambda x: torch.var(x, -1, keepdim=True) * 10),  # with a large mean
    "log": (ONES, lambda x: torch.log(x) * 100),
}


class Model(nn.Module):
    """Linear layers with harmless ops, to which the planted ones are added. Gradients come to these, or do not, as to rotary positions."""

    def __init__(self, *planted: str, gradients: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.planted = nn.ParameterDict({name: nn.Parameter(PLANTED[name][0].clone(), gradients) for name in planted})
        self.first = nn.Linear(16, 16)
        self.last = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.last(F.gelu(self.first(x)))
        for name, given in self.planted.items():
            y = y + PLANTED[name][1](given) * torch.sigmoid(y)
        return torch.tanh(y)


class Wave(nn.Module):
    def __init__(self, angles: torch.Tensor) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))
        self.angles = angles

    def forward(self) -> torch.Tensor:
        return torch.cos(self.angles) * self.scale


class Waves(nn.Module):
    """One op in three modules, of which one loses accuracy."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.near, self.middle, self.far = Wave(X), Wave(X / 2), Wave(ANGLES)
        self.last = nn.Linear(16, 16)

    def forward(self) -> torch.Tensor:
        return self.last(self.near() + self.middle() + self.far())


def error_of(step, policy: hmp.Policy) -> float:
    """Of outputs, as it is defined."""
    exact = step().detach().double()
    with hmp.autocast("cpu", policy=policy):
        return ((step().detach().double() - exact).norm() / exact.norm()).item()


def wide(found: hmp.Tuned) -> Collection[str]:
    return {part.name for part in found.parts if part.list == "fp32"}
