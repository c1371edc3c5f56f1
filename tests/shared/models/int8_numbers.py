"""What docs/int8.md promises, in plain torch: the reference of the tests."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from habana_mp import hmp

SMALLEST = torch.finfo(torch.float32).tiny


class Product(nn.Module):
    """A matmul with a weight of its own, in no layer of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def rounded(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers of 8 bits, and one float32 scale a row, of rows x numbers."""
    rows = rows.float()
    scale = rows.abs().amax(1) / 127 if rows.shape[1] else torch.zeros(len(rows))
    scale = torch.where(scale.isfinite(), scale, torch.nan)
    scale = torch.where(scale < SMALLEST, 0.0, scale)
    known = scale.isfinite() & (scale > 0)
    numbers = torch.zeros(rows.shape, dtype=torch.int64)
    numbers[known] = (rows[known] / scale[known, None]).round().clamp(-127, 127).long()
    return numbers, scale


def int8(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, low: torch.dtype) -> torch.Tensor:
    """The product of rows x inputs and outputs x inputs, in the list ``int8``."""
    numbers, scales = rounded(x.to(low))
    weights, of_output = rounded(weight)
    y = (numbers @ weights.T).float() * scales[:, None] * of_output
    return (y if bias is None else y + bias.float()).to(low)


def weight_int8(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, low: torch.dtype) -> torch.Tensor:
    """The same in the list ``weight_int8``. The sums are those in float64: exact for few bits of x and small sums."""
    weights, of_output = rounded(weight)
    y = (x.to(low).double() @ weights.T.double()).float() * of_output
    return (y if bias is None else y + bias.float()).to(low)


LISTS = {"weight_int8": weight_int8, "int8": int8}


def few_bits(*sizes: int) -> torch.Tensor:
    """Numbers whose products with others of 8 bits have exact sums."""
    return torch.randint(-8, 9, sizes).float() / 4


def bits(result: torch.Tensor) -> torch.Tensor:
    """The bits of numbers in a low dtype."""
    return result.contiguous().view(torch.int16)


def policy_of(title: str, *ops: str, low: torch.dtype = torch.bfloat16) -> hmp.Policy:
    return hmp.Policy.from_ops(low_dtype=low, **{title: ops})


def run(front_end: str, policy: hmp.Policy, call: Callable[[], torch.Tensor]) -> torch.Tensor:
    """The result of a call under a policy, without gradients; twice, so that the second one has the cache's copy."""
    with torch.no_grad():
        if front_end == "autocast":
            with hmp.autocast("cpu", policy=policy):
                first, second = call(), call()
        else:
            hmp.convert(policy=policy)
            try:
                first, second = call(), call()
            finally:
                hmp.revert()
    assert torch.equal(bits(first), bits(second))
    return first
