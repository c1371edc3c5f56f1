"""How a call arrives at torch's own function: with which arguments, and after how many casts."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from habana_mp import hmp

F32, BF16, F16, F64 = torch.float32, torch.bfloat16, torch.float16, torch.float64


class CastCount(TorchDispatchMode):
    """Counts the casts that are made."""

    def __init__(self):
        super().__init__()
        self.casts = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.casts += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


class Arrived(TorchFunctionMode):
    """Keeps the last call of torch's own functions as it reaches them."""

    args = kwargs = None

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.args, self.kwargs = args, kwargs or {}
        return func(*args, **(kwargs or {}))


def arrived(call):
    """The arguments with which a call reaches torch's own function, whether it can do the rest or not."""
    with Arrived() as mode, contextlib.suppress(Exception):
        call()
    return mode.args, mode.kwargs


def dtypes_arrived(call):
    args, kwargs = arrived(call)
    return [value.dtype for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]


def count_casts(call):
    with CastCount() as mode:
        result = call()
    return mode.casts, result


def in_dtype(tensor, dtype):
    with _disable_current_modes():  # this is no cast that counts
        return tensor.to(dtype)


def x(dtype=F32, *shape):
    return in_dtype(torch.linspace(0.5, 2, 4).reshape(shape or (2, 2)), dtype)


def image(dtype=F32):
    return in_dtype(torch.linspace(0, 1, 32).reshape(1, 2, 4, 4), dtype)


def policy(rest="inputs", low_dtype=BF16, **lists):
    return hmp.convert(policy=hmp.Policy.from_ops(rest=rest, low_dtype=low_dtype, **lists))


def ids():
    return torch.tensor([0, 1])


def named_cases(table):
    return [pytest.param(*row, id=name) for name, row in table.items()]


def casts_of(report: hmp.CastReport, op: str) -> int:
    """Also of an op that the report may not have seen: ``report.casts`` raises for it, because its name may be wrong."""
    return sum(row.casts for row in report.rows if row.op == op)
