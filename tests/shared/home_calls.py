"""What the homes of ops are called with, and what is listed of them."""

from __future__ import annotations

import pytest
import torch

from habana_mp import hmp

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16

MATRIX = torch.tensor([[1.5, 2.0], [3.0, 4.25]])
OTHER = torch.tensor([[2.0, 1.0], [1.0, 3.0]])


def a():
    return MATRIX.clone()


def b():
    return OTHER.clone()


def image(channels=2):
    return torch.linspace(0, 1, channels * 16).reshape(1, channels, 4, 4)


def signal():
    return torch.linspace(0, 1, 8)


def volume():
    return torch.linspace(0, 1, 64).reshape(1, 1, 4, 4, 4)


def lower(*names):
    return hmp.convert(policy=hmp.Policy.from_ops(lower=names))


def fp32(*names):
    return hmp.convert(policy=hmp.Policy.from_ops(fp32=names))


def dtype_of(result):
    while isinstance(result, (tuple, list)):
        result = result[0]
    return result.dtype


def cases(table):
    return [
        pytest.param(name, call, id=f"{name}: {home}") for name, homes in table.items() for home, call in homes.items()
    ]
