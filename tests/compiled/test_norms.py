"""Formulas of norms keep mean and rstd in the dtype that the kernels keep them in (D55)."""

from __future__ import annotations

import pytest
import torch
from torch._inductor.decomposition import select_decomp_table

from habana_mp._compiled.norms import with_exact_norms

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
# What the ops take before and behind their weight and bias.
NORMS = {
    torch.ops.aten.native_layer_norm.default: (((64, 16), [16]), (1e-5,)),
    torch.ops.aten.native_group_norm.default: (((4, 16, 8),), (4, 16, 8, 4, 1e-5)),
}


@pytest.mark.parametrize("dtypes", [(BF16, FP32), (FP16, FP32), (BF16, BF16), (FP32, FP32)], ids=str)
@pytest.mark.parametrize("op", NORMS, ids=str)
def test_statistics_are_those_of_the_kernel(op, dtypes) -> None:
    """Of torch's formulas they are in the dtype of the input, which put gradients off by 0.0029."""
    (shape, *before), behind = NORMS[op]
    x, weight, bias = (
        torch.randn(each).to(dtype) for each, dtype in zip((shape, 16, 16), dtypes[:1] + dtypes[1:] * 2, strict=True)
    )
    given = (x, *before, weight, bias, *behind)
    torch.testing.assert_close(with_exact_norms(select_decomp_table())[op](*given), op(*given))
