"""Every namespace that a conversion may touch: what its names hold, and which of them hold another object later."""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16

OWNERS = [
    torch,
    F,
    torch.functional,
    torch._VF,
    torch.linalg,
    torch.fft,
    torch.special,
    torch._C._nn,
    sys.modules["torch._C._linalg"],
    sys.modules["torch._C._fft"],
    sys.modules["torch._C._special"],
    torch.Tensor,
    nn.Module,
    nn.RNNBase,
    nn.modules.rnn,
    nn.init,
    torch.jit,
    torch.utils.checkpoint,
    torch.utils.checkpoint.CheckpointFunction,
    torch.backends.mha,
]


def snapshot():
    """Every name of every namespace that a conversion may touch, in order, with the object that it holds."""
    return [list(vars(owner).items()) for owner in OWNERS]


def changed(before, after):
    """The names that hold another object, were added or removed."""
    names = []
    for owner, old, new in zip(OWNERS, before, after, strict=True):
        old, new = dict(old), dict(new)
        names += [f"{owner.__name__}.{name}" for name in old.keys() | new.keys() if old.get(name) is not new.get(name)]
    return sorted(names)


def a():
    return torch.ones(2, 2)
