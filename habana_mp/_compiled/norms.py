"""Formulas of norms for graphs that round as uncompiled code does (D55).

Inductor computes layer_norm and group_norm by formulas of torch, which round mean and rstd to the dtype of the input. The kernels keep them in
float32 if the weight is float32, and the backward pass reads them. Lists cast the input of a norm and not its weight, so this is the common case.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from habana_mp._cast import LOW_DTYPES

_NORMS = (torch.ops.aten.native_layer_norm.default, torch.ops.aten.native_group_norm.default)


def with_exact_norms(formulas: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    return {**formulas, **{op: _with_wide_statistics(formulas[op]) for op in _NORMS if op in formulas}}


def _with_wide_statistics(of_torch: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(of_torch)
    def norm(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        others = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
        if x.dtype not in LOW_DTYPES or all(each.dtype != torch.float32 for each in others):
            return of_torch(x, *args, **kwargs)
        result, mean, rstd = of_torch(x.float(), *args, **kwargs)
        return result.to(x.dtype), mean, rstd

    return norm
