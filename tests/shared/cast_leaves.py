"""Leaves of every layout to cast, the gradients that come in from above, and the cast of torch that ours is held against."""

import pytest
import torch

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
PAIRS = [(FP32, BF16), (FP32, FP16), (BF16, FP32), (FP16, FP32), (BF16, FP16), (FP16, BF16)]

pairs = pytest.mark.parametrize(("source", "to"), PAIRS, ids=lambda dtype: str(dtype).removeprefix("torch."))


def theirs(x, to):
    return x.to(to)


def numbers(*sizes):
    return torch.linspace(-3, 5, max(1, torch.Size(sizes).numel()))[: torch.Size(sizes).numel()].view(sizes)


# A leaf, and the strides of its gradient: those of the leaf where its elements lie without gaps and without overlaps, as torch promises.
LEAVES = {
    "contiguous": lambda: numbers(6, 4),
    "transposed": lambda: numbers(6, 4).t(),
    "permuted": lambda: numbers(2, 3, 4).permute(2, 0, 1),
    "channels-last": lambda: numbers(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "channels-last-1x1": lambda: numbers(4, 3, 1, 1).to(memory_format=torch.channels_last),
    "channels-last-3d": lambda: numbers(2, 3, 2, 2, 2).to(memory_format=torch.channels_last_3d),
    "vector": lambda: numbers(7),
    "scalar": lambda: numbers(1)[0],
    "empty": lambda: numbers(0, 3),
    "size-1": numbers(3, 4)[:, :1].t,
    "gaps": lambda: numbers(3, 8)[:, ::2],
    "rows-apart": lambda: numbers(6, 4)[::2],
    "expanded": lambda: numbers(1, 4).expand(3, 4),
    "expanded-inside": lambda: numbers(3, 1).expand(3, 4),
    "expanded-scalar": lambda: numbers(1).expand(3, 4),
    "overlapping": lambda: numbers(12).as_strided((3, 4), (2, 1)),
    "unaligned": lambda: numbers(13)[1:].view(3, 4),
    "large": lambda: numbers(300, 400).t(),
}


def dense(y):
    return (torch.arange(y.numel(), device=y.device).view(y.shape) % 7).to(y.dtype)
