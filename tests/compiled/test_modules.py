"""Modules of torch's own table, compiled by Inductor under hmp-o2, whose rest is float32: results and gradients are those of uncompiled code (D55)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch.testing._internal.common_modules import module_db
from torch.utils._pytree import tree_leaves

from habana_mp import hmp
from zoo.cases.calls import copied
from zoo.cases.modules import maker

# What compiled code computes in another way, by docs/compile.md, and what torch refuses uncompiled, as the table has its samples in float64.
OTHERS = ["nn.Bilinear", "nn.FractionalMaxPool2d", "nn.FractionalMaxPool3d"]
MODULES = {info.name: info for info in module_db if info.name not in OTHERS}


def results(call: Any, run: Callable[..., Any], grad: bool) -> list[torch.Tensor]:
    args, kwargs = copied((call.args, call.kwargs))
    call.function.zero_grad()
    torch.manual_seed(0)
    with contextlib.nullcontext() if grad else torch.no_grad():
        found = [each for each in tree_leaves(run(*args, **kwargs)) if isinstance(each, torch.Tensor)]
    roots = [each for each in found if each.requires_grad]
    torch.autograd.backward(roots, [torch.randn_like(each) for each in roots])
    given = [*tree_leaves((args, kwargs)), *call.function.parameters()]
    return [*found, *(each.grad for each in given if isinstance(each, torch.Tensor) and each.grad is not None)]


@pytest.fixture(autouse=True)
def one_kernel_of_convolutions(monkeypatch) -> None:
    """Where oneDNN has no bfloat16, torch's convolutions add up in another order in channels_last, which Inductor chooses (docs/compile.md)."""
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        monkeypatch.setattr(torch._inductor.config, "layout_optimization", False)


@pytest.mark.filterwarnings("ignore:reduction:UserWarning", "ignore:enable_nested_tensor is True:UserWarning")
@pytest.mark.parametrize("name", MODULES)
def test_a_module(name) -> None:
    call = next(call for call in maker(MODULES[name])("float32") if not call.function.training)
    hmp.convert(opt_level="O2")
    for grad in (False, True):
        expected = results(call, call.function, grad)
        found = results(call, torch.compile(call.function), grad)
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == b.dtype
            error = (a - b).double().nan_to_num().norm()
            assert error <= 2e-3 * b.double().nan_to_num().norm() + 1e-6
            assert torch.equal(a.isnan(), b.isnan())
