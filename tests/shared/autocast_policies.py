"""Two policies for regions of autocast, and what ops give under each of them."""

from __future__ import annotations

import torch

from habana_mp import hmp

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


def mat(dtype: torch.dtype = FP32, n: int = 4) -> torch.Tensor:
    return torch.ones(n, n, dtype=dtype)


A = hmp.Policy.from_ops(lower=["mm", "add"], fp32=["softmax"], promote=["cat"], name="a")
B = hmp.Policy.from_ops(lower=["softmax"], fp32=["mm"], name="b")


def results() -> tuple[torch.dtype, ...]:
    """What mm, add and softmax give here: bfloat16, bfloat16, float32 under A; float32, float32, bfloat16 under B."""
    return torch.mm(mat(), mat()).dtype, torch.add(mat(), mat()).dtype, torch.softmax(mat(), 0).dtype


PLAIN, TORCH, UNDER_A, UNDER_B = (FP32, FP32, FP32), (BF16, FP32, FP32), (BF16, BF16, FP32), (FP32, FP32, BF16)
