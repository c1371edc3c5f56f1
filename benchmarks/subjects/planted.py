"""Models with ops that bfloat16 spoils in random places: what a search for a policy must find."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

INNOCENT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": functional.gelu,
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "layer_norm": lambda x: functional.layer_norm(x, (64,)),
    "softmax": lambda x: torch.softmax(x, -1) * 8,
    "leaky_relu": functional.leaky_relu,
    "elu": functional.elu,
    "hardtanh": functional.hardtanh,
}
# What bfloat16 spoils: large angles, differences of large numbers, numbers beside 1. The numbers are weights: (smallest, largest), and what is done with them.
FAULTY: dict[str, tuple[float, float, Callable[[torch.Tensor], torch.Tensor]]] = {
    "cos": (0, 3000, torch.cos),
    "sin": (0, 3000, torch.sin),
    "sub": (1000, 1002, lambda w: torch.sub(w, 1000.0)),
    "var": (500, 502, lambda w: torch.var(w, -1, keepdim=True)),
    "std": (500, 503, lambda w: torch.std(w, -1, keepdim=True)),
    "log": (1, 1.002, lambda w: torch.log(w) * 1000),
    "frac": (0, 1000, torch.frac),
    "fmod": (0, 2000, lambda w: torch.fmod(w, 2.0)),
    "acos": (0.9998, 1, lambda w: torch.acos(w) * 50),
    "exp": (24, 26, lambda w: torch.exp(w) * 1e-11),
}


class Planted(nn.Module):
    """Linear layers with innocent ops between them, and faulty ones in random places."""

    def __init__(self, faults: list[str], drawn: random.Random) -> None:
        super().__init__()
        self.kinds = [*drawn.sample([*INNOCENT], 6), *faults]
        drawn.shuffle(self.kinds)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in self.kinds)
        ranges = {kind: FAULTY[kind][:2] for kind in faults}
        self.weights = nn.ParameterDict({kind: torch.empty(64, 64).uniform_(*ends) for kind, ends in ranges.items()})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, kind in zip(self.layers, self.kinds, strict=True):
            y = INNOCENT[kind](x) if kind in INNOCENT else FAULTY[kind][2](self.weights[kind])
            x = x + layer(y.expand(64, 64))
        return x
