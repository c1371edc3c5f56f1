"""Our formulas give the numbers of the kernels, also between a low input and a weight in float32 (D55)."""

from __future__ import annotations

import pytest
import torch

from habana_mp._compiled.formulas import exact, table

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
ATEN = torch.ops.aten
DTYPES = pytest.mark.parametrize("dtypes", [(BF16, FP32), (FP16, FP32), (BF16, BF16), (FP32, FP32)], ids=str)


def given(dtypes, *shape: int) -> list[torch.Tensor]:
    """An input, and a weight and a bias of 16 numbers."""
    return [
        torch.randn(each).to(dtype) for each, dtype in zip((shape, 16, 16), (dtypes[0], *dtypes[1:] * 2), strict=True)
    ]


def agree(op, *args) -> None:
    with exact():
        ours = table()
    torch.testing.assert_close(ours[op](*args), op(*args))


@DTYPES
def test_layer_norm(dtypes) -> None:
    """Beside a weight in float32 the formula of torch rounds mean and rstd, which put the gradient off by 0.0029."""
    x, weight, bias = given(dtypes, 64, 16)
    agree(ATEN.native_layer_norm.default, x, [16], weight, bias, 1e-5)


@pytest.mark.parametrize("dtypes", [(BF16, FP32), (FP16, FP32), (FP32, FP32)], ids=str)
def test_batch_norm_in_training(dtypes) -> None:
    x, weight, bias = given(dtypes, 4, 16, 8)
    running = torch.zeros(16, dtype=weight.dtype), torch.ones(16, dtype=weight.dtype)
    agree(ATEN._native_batch_norm_legit_functional.default, x, weight, bias, *running, True, 0.1, 1e-5)


@DTYPES
def test_group_norm(dtypes) -> None:
    x, weight, bias = given(dtypes, 4, 16, 8)
    agree(ATEN.native_group_norm.default, x, weight, bias, 4, 16, 8, 4, 1e-5)


@DTYPES
@pytest.mark.parametrize("wanted", [[True] * 3, [False, True, True]], ids=str)
def test_gradients_of_group_norm(dtypes, wanted: list[bool]) -> None:
    """Beside a weight in float32 the formula of torch rounds its sums, which put the gradient off by 0.0017."""
    x, weight, bias = given(dtypes, 4, 16, 8)
    _, mean, rstd = ATEN.native_group_norm(x, weight, bias, 4, 16, 8, 4, 1e-5)
    agree(
        ATEN.native_group_norm_backward.default, torch.randn(x.shape).to(x), x, mean, rstd, weight, 4, 16, 8, 4, wanted
    )
