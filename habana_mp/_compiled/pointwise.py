"""Formulas of pointwise ops with the roundings of the kernels on the CPU, for graphs that round as uncompiled code does (D55).

Inductor makes several ops of some pointwise ops, and with the roundings of ops on it rounds between them, where the kernel rounds once. Other
kernels round inside, as that of ``x ** 3`` in bfloat16 does. A number that a kernel takes as a tensor has the dtype of the other tensor.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from habana_mp._cast import LOW_DTYPES
from habana_mp._torch_private import TRACED_FORMULAS

_Formula = Callable[..., Any]
_ATEN = torch.ops.aten
# Bits of the significand, and the exponent of the smallest number.
_PRECISION = {torch.bfloat16: (8, -133), torch.float16: (11, -24)}


def formulas(of_torch: dict[Any, _Formula]) -> dict[Any, _Formula]:
    """By op. What is not computed in one low dtype on the CPU is left to the formulas of torch, if there is one."""
    return {op: _of_low(formula, of_torch.get(op)) for op, formula in _FORMULAS.items()}


def _of_low(formula: _Formula, of_torch: _Formula | None) -> _Formula:
    @functools.wraps(formula)
    def decomposed(*args: Any, **kwargs: Any) -> Any:
        tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
        low = tensors[0].dtype
        if low in LOW_DTYPES and all(each.dtype == low and each.device.type == "cpu" for each in tensors):
            found = formula(*args, **kwargs)
            if found is not NotImplemented:
                return found.to(low)
        return NotImplemented if of_torch is None else of_torch(*args, **kwargs)

    return decomposed


def _rounded(number: float, low: torch.dtype) -> float:
    """The number in the low dtype, to nearest, ties to even. Ops on tensors would become a part of the graph."""
    bits, least = _PRECISION[low]
    unit = math.ldexp(1.0, max(math.frexp(number)[1] - bits, least))
    return round(number / unit) * unit


def _kept(result: torch.Tensor) -> torch.Tensor:
    """A low result that is rounded: inside a formula, Inductor by itself keeps no rounding but those of the last op."""
    mode = TRACED_FORMULAS.mode() if TRACED_FORMULAS.works else None
    if mode is not None:
        next(reversed(mode.tracer.graph.nodes)).meta["low_precision_pointwise_barrier"] = True
    return result


def _is_number(value: object, low: torch.dtype) -> bool:
    return isinstance(value, (int, float)) and abs(value) <= torch.finfo(low).max


def _add(x: torch.Tensor, other: Any, *, alpha: Any = 1) -> Any:
    low = x.dtype
    if not _is_number(alpha, low):
        return NotImplemented
    if isinstance(other, torch.Tensor):
        return NotImplemented if alpha == 1 else x.float() + other.float() * _rounded(alpha, low)
    if not _is_number(other, low) or (alpha == 1 and _rounded(other, low) == other):
        return NotImplemented
    return x.float() + _rounded(other, low) * _rounded(alpha, low)


def _sub(x: torch.Tensor, other: Any, *, alpha: Any = 1) -> Any:
    if isinstance(other, torch.Tensor) and alpha == 1:
        return NotImplemented
    return _add(x, other, alpha=-alpha)


def _rsub(x: torch.Tensor, other: Any, alpha: Any = 1) -> Any:
    low = x.dtype
    if not _is_number(other, low) or not _is_number(alpha, low):
        return NotImplemented
    return _rounded(other, low) - x.float() * _rounded(alpha, low)


def _addcdiv(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, value: Any = 1) -> torch.Tensor:
    return x.float() + value * (a.float() / b.float())


def _lerp(x: torch.Tensor, end: torch.Tensor, weight: Any) -> torch.Tensor:
    way = end.float() - x.float()
    return x.float() + weight * way if abs(weight) < 0.5 else end.float() - way * (1 - weight)


def _pow(x: torch.Tensor, exponent: Any) -> Any:
    if x.dtype == torch.bfloat16 and exponent == 3:
        return x * x * x
    return (x * x).reciprocal() if x.dtype == torch.bfloat16 and exponent == -2 else NotImplemented


def _glu(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    value, gate = x.float().chunk(2, dim)
    return value * gate.sigmoid()


def _glu_backward(grad: torch.Tensor, x: torch.Tensor, dim: int) -> torch.Tensor:
    value, gate = x.chunk(2, dim)
    share = _kept(gate.sigmoid()).float()  # the kernel has it in memory
    passed = grad.float() * share
    return torch.cat([passed, (1 - share) * passed * value.float()], dim)


def _of_remainder(op: _Formula) -> _Formula:
    def remainder(x: torch.Tensor, number: Any) -> Any:
        return op(x.float(), _rounded(number, x.dtype)) if _is_number(number, x.dtype) else NotImplemented

    return remainder


_FORMULAS: dict[Any, _Formula] = {
    _ATEN.add.Tensor: _add,
    _ATEN.add.Scalar: _add,
    _ATEN.sub.Tensor: _sub,
    _ATEN.sub.Scalar: _sub,
    _ATEN.rsub.Scalar: _rsub,
    _ATEN.addcdiv.default: _addcdiv,
    _ATEN.lerp.Scalar: _lerp,
    _ATEN.pow.Tensor_Scalar: _pow,
    _ATEN.glu.default: _glu,
    _ATEN.glu_backward.default: _glu_backward,
    _ATEN.fmod.Scalar: _of_remainder(torch.fmod),
    _ATEN.remainder.Scalar: _of_remainder(torch.remainder),
}
