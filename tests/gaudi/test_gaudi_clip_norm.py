"""FusedClipNorm against torch's clip_grad_norm_ (F216, F217)."""

from __future__ import annotations

import pytest
import torch
from optimizer_steps import give_gradients, parameters
from torch import nn

from habana_mp import hmp
from habana_mp._gaudi.hpex.normalization import FusedClipNorm

F32, BF16 = torch.float32, torch.bfloat16


@pytest.mark.parametrize("max_norm", [0.5, 100.0, 0.0], ids=["clips", "is far", "zero"])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_clip_norm(max_norm, dtype):
    one, other = parameters(dtype), parameters(dtype)
    give_gradients(one, 1)
    give_gradients(other, 1)
    expected = nn.utils.clip_grad_norm_(other, max_norm)
    hmp.convert()
    message = FusedClipNorm(iter(one), max_norm).clip_norm(iter(one))
    hmp.revert()
    assert torch.equal(message, expected)
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(one, other, strict=True))


def test_clip_norm_of_one_tensor():
    p = nn.Parameter(torch.ones(4))
    p.grad = torch.ones(4)
    assert FusedClipNorm(p, max_norm=1.0).clip_norm(p) == 2.0
    assert p.grad.norm() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("max_norm", [-1.0, float("nan")], ids=str)
def test_clip_norm_refuses(max_norm):
    with pytest.raises(ValueError, match=f"max_norm must be a number, 0 or more, not {max_norm}"):
        FusedClipNorm([], max_norm)
