"""Parameters, gradients for them, and what an optimizer makes of both."""

from __future__ import annotations

import torch
from torch import nn

F32 = torch.float32
SHAPES = [(4, 3), (5,), ()]


def parameters(dtype=F32, shapes=SHAPES):
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape).to(dtype)) for shape in shapes]


def give_gradients(params, seed):
    torch.manual_seed(seed)
    for p in params:
        p.grad = torch.randn(p.shape).to(p.dtype)


def train(optimizer, params, steps=4):
    for step in range(steps):
        give_gradients(params, 1 + step)
        optimizer.step()
    return [p.detach().clone() for p in params]


def close(ours, theirs, **tolerance):
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, **tolerance)
