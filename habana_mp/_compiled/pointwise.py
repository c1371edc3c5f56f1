"""Formulas of pointwise ops with the roundings of the kernels on the CPU, for graphs that round as uncompiled code does.

Inductor makes several ops of some pointwise ops, and with the roundings of ops on it rounds between them, where the kernel rounds once. Other
kernels round inside, as that of ``x ** 3`` in bfloat16 does. A number that a kernel takes as a tensor has the dtype of the other tensor.
"""  # (D55)

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from habana_mp._cast import LOW_DTYPES
from habana_mp._torch_private import TRACED_FORMULAS

_Formula = Callable[..., Any]
_ATEN = torch.ops.aten
# Bits of the significand, and the exponent of the smallest number.
_PRECISION = {torch.bfloat16: (8, -133), torch.float16: (11, -24), torch.float32: (24, -149)}


def formulas(of_torch: dict[Any, _Formula]) -> dict[Any, _Formula]:
    """By op. What is not computed in one low dtype on the CPU is left to the formulas of torch, if there is one."""
    found: dict[Any, _Formula] = {
        op: functools.partial(_of_low, formula, of_torch.get(op)) for op, formula in _FORMULAS.items()
    }
    return {**found, _ATEN.full.default: functools.partial(_full, of_torch.get(_ATEN.full.default))}


def _of_low(formula: _Formula, of_torch: _Formula | None, *args: Any, **kwargs: Any) -> Any:
    tensors = [each for each in args if isinstance(each, torch.Tensor)]
    whole = max(tensors, key=torch.Tensor.dim)
    low = whole.dtype
    if low in LOW_DTYPES and all(
        each.device.type == "cpu" and (each.dtype == low or (whole.dim() > 0 and _is_single(each))) for each in tensors
    ):
        found = formula(low, *args, **kwargs)
        if found is not NotImplemented:
            return found.to(low)
    return NotImplemented if of_torch is None else of_torch(*args, **kwargs)


def _rounded(number: float, dtype: torch.dtype) -> float:
    """The number in the dtype, to nearest, ties to even. Ops on tensors would become a part of the graph."""
    bits, least = _PRECISION[dtype]
    unit = math.ldexp(1.0, max(math.frexp(number)[1] - bits, least))
    return math.copysign(round(number / unit) * unit, number)


def _in(low: torch.dtype, value: Any) -> Any:
    """The numbers of a tensor of the low dtype, in float32; or a single number in the low dtype, as torch does it, by way of float32."""
    if isinstance(value, torch.Tensor):
        return _wide(_kept(value.to(low)) if _is_single(value) else value)
    return _rounded(_rounded(value, torch.float32), low)


def _is_single(value: object) -> bool:
    """Beside a tensor with dimensions, one without takes part in an op as a number does."""
    return (
        isinstance(value, torch.Tensor)
        and value.dim() == 0
        and value.dtype not in LOW_DTYPES
        and not value.is_complex()
    )


def _is_number(value: object, low: torch.dtype) -> bool:
    """Not a symbol, whose value is not known, and not infinite in the low dtype."""
    return isinstance(value, (int, float)) and math.isfinite(value) and abs(_in(low, value)) <= torch.finfo(low).max


def _wide(low: torch.Tensor) -> torch.Tensor:
    """In float32, of what is rounded: Inductor may have the number that another op, such as addcmul, has not rounded yet."""
    return _kept(low.float()) if low.dtype in LOW_DTYPES else low


def _kept(result: torch.Tensor) -> torch.Tensor:
    """A low result or argument that is rounded: inside a formula, Inductor by itself keeps no rounding but those of the last op."""
    mode = TRACED_FORMULAS.mode() if TRACED_FORMULAS.works else None
    if mode is not None:
        # Before torch 2.13 what reversed() gives is no iterator.
        next(iter(reversed(mode.tracer.graph.nodes))).meta["low_precision_pointwise_barrier"] = True
    return result


def _add(low: torch.dtype, x: Any, other: Any, *, alpha: Any = 1, sign: int = 1) -> Any:
    numbers = [each for each in (x, other, alpha) if not isinstance(each, torch.Tensor)]
    if not all(_is_number(each, low) for each in numbers):
        return NotImplemented
    if alpha == 1:
        if all(_in(low, each) == each for each in numbers) and not (_is_single(x) or _is_single(other)):
            return NotImplemented
    elif not all(each.is_contiguous() for each in (x, other) if isinstance(each, torch.Tensor)):
        return NotImplemented  # these take the way of the kernel for single numbers, which rounds twice
    return _in(low, x) + _in(low, other) * (sign * _in(low, alpha))


def _rsub(low: torch.dtype, x: torch.Tensor, other: Any, alpha: Any = 1) -> Any:
    return _add(low, other, x, alpha=alpha, sign=-1)


def _with_single(by: Callable[[Any, Any], Any], low: torch.dtype, x: Any, other: Any) -> Any:
    # These are not rounded. Torch 2.15 rounds a number in the graph to the low dtype, and each torch a size.
    is_size = isinstance(other, (torch.SymInt, torch.SymFloat))
    if (
        _is_single(other)
        or is_size
        or (isinstance(other, (int, float)) and not (_is_number(other, low) and _in(low, other) == other))
    ):
        return by(_wide(x), other)
    return by(_in(low, x), _in(low, other)) if _is_single(x) else NotImplemented


def _lerp(low: torch.dtype, x: torch.Tensor, end: torch.Tensor, weight: Any) -> Any:
    if not _is_number(weight, low):
        return NotImplemented
    weight = _rounded(weight, torch.float32)
    x, end = _wide(x), _wide(end)
    way = end - x
    if abs(weight) < 0.5:
        return x + weight * way
    return end - way * _rounded(1 - weight, torch.float32)


def _pow(low: torch.dtype, x: torch.Tensor, exponent: Any) -> Any:
    if not _is_number(exponent, low):
        return NotImplemented
    exponent = _in(low, exponent)
    if low == torch.bfloat16 and exponent == 3:
        return x * x * x
    if low == torch.bfloat16 and exponent == -2:
        return (x * x).reciprocal()
    # Of other powers Inductor does not round the result. Small whole ones it multiplies.
    return _wide(x) ** (int(exponent) if exponent == int(exponent) and abs(exponent) < 32 else exponent)


def _glu(_: torch.dtype, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    value, gate = _wide(x).chunk(2, dim)
    return value * gate.sigmoid()


def _glu_backward(_: torch.dtype, grad: torch.Tensor, x: torch.Tensor, dim: int) -> torch.Tensor:
    value, gate = x.chunk(2, dim)
    share = _kept(gate.sigmoid()).float()  # the kernel has it in memory
    passed = grad.float() * share
    return torch.cat([passed, (1 - share) * passed * value.float()], dim)


def _fmod(low: torch.dtype, x: torch.Tensor, number: Any) -> Any:
    return torch.fmod(_wide(x), _in(low, number)) if _is_number(number, low) else NotImplemented


def _remainder(low: torch.dtype, x: torch.Tensor, number: Any) -> Any:
    rest = _fmod(low, x, number)
    if rest is NotImplemented:
        return NotImplemented
    return torch.where((rest != 0) & ((rest < 0) != (number < 0)), rest + _in(low, number), rest)


def _full(of_torch: _Formula | None, size: Any, value: Any, *, dtype: Any = None, **kwargs: Any) -> Any:
    """Before torch 2.15 Inductor takes the number into the next kernel as it is given."""
    if dtype in LOW_DTYPES and _is_number(value, dtype) and _in(dtype, value) != value:
        return torch.full(size, _in(dtype, value), dtype=dtype, **kwargs)
    return NotImplemented if of_torch is None else of_torch(size, value, dtype=dtype, **kwargs)


_FORMULAS: dict[Any, _Formula] = {
    _ATEN.add.Tensor: _add,
    _ATEN.add.Scalar: _add,
    _ATEN.sub.Tensor: functools.partial(_add, sign=-1),
    _ATEN.sub.Scalar: functools.partial(_add, sign=-1),
    _ATEN.rsub.Scalar: _rsub,
    _ATEN.mul.Tensor: functools.partial(_with_single, operator.mul),
    _ATEN.mul.Scalar: functools.partial(_with_single, operator.mul),
    _ATEN.div.Tensor: functools.partial(_with_single, operator.truediv),
    _ATEN.div.Scalar: functools.partial(_with_single, operator.truediv),
    _ATEN.lerp.Scalar: _lerp,
    _ATEN.pow.Tensor_Scalar: _pow,
    _ATEN.glu.default: _glu,
    _ATEN.glu_backward.default: _glu_backward,
    _ATEN.fmod.Scalar: _fmod,
    _ATEN.remainder.Scalar: _remainder,
}
