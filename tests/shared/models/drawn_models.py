"""Models that are drawn, each with its input, and a block of code that is converted."""

from __future__ import annotations

import contextlib

import torch
from torch import nn

from habana_mp import hmp


@contextlib.contextmanager
def converted(*args, **kwargs):
    hmp.convert(*args, **kwargs)
    try:
        yield
    finally:
        hmp.revert()


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.proj = nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.proj((q @ k.transpose(-1, -2)).softmax(-1) @ v)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x)


def linear() -> tuple[nn.Module, torch.Tensor]:
    return nn.Linear(4, 3), torch.randn(2, 4)


def block() -> tuple[nn.Module, torch.Tensor]:
    return Block(), torch.randn(2, 5, 8)


def cnn() -> tuple[nn.Module, torch.Tensor]:
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4, 3)
    return nn.Sequential(*layers, nn.LogSoftmax(-1)), torch.randn(2, 1, 4, 4)


def encoder_layer() -> tuple[nn.Module, torch.Tensor]:
    return nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), torch.randn(2, 3, 16)
