"""Formulas of norms, of products of one row and of pointwise ops for graphs that round as uncompiled code does.

Inductor computes batch_norm in training, layer_norm and group_norm by formulas of torch. With a low input and a weight in float32, which is what
the lists make, these round more than the kernels: mean and rstd, which the backward pass reads, and sums in the backward pass of group_norm.
Computed in float32, with the result rounded at the end, they give the numbers of the kernels.

With the formula of torch, Inductor takes products round a softmax for attention and computes them by a kernel that rounds elsewhere. Ours has
other views, which compute the same.

A bmm of one row or one column is a product and a sum for Inductor on the CPU: with the roundings of a mul it rounds each product, which no kernel does.
"""  # (D55)

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.compiler.config

import habana_mp._core as _core
from habana_mp._cast import LOW_DTYPES
from habana_mp._compiled import pointwise, round_trips
from habana_mp._scope.without_casts import with_casts_off
from habana_mp._torch_private import COMPILE_FX

# The place of the weight among the arguments. The first argument has the dtype of the first result.
_NORMS = {
    "aten._native_batch_norm_legit_functional.default": 1,
    "aten._batch_norm_with_update_functional.default": 1,
    "aten.native_layer_norm.default": 2,
    "aten.native_group_norm.default": 1,
    "aten.native_group_norm_backward.default": 4,
}

_SOFTMAX = "aten._softmax.default"
_BMM = torch.ops.aten.bmm.default

_TORCHS: list[Callable[[], dict[Any, Callable[..., Any]]]] = []  # the function that table() takes the place of


@contextmanager
def exact() -> Iterator[None]:
    """Inductor takes these formulas for the graph that it begins to compile inside, also for its backward pass, which is compiled later."""
    before = COMPILE_FX.formulas
    if before is not table:  # of a graph that is compiled while another is
        _TORCHS[:] = [before]
    setattr(*COMPILE_FX.place("formulas"), table)
    try:
        with own_in_caches():
            yield
    finally:
        setattr(*COMPILE_FX.place("formulas"), before)


@functools.cache
def _tag() -> str:
    """The caches of torch on disk do not look at formulas, nor at kernels that choose what a graph has: graphs that others, or another version of
    these files and their neighbours, have made are not taken.
    """
    files = [*sorted(Path(__file__).parent.glob("*.py")), Path(str(_core.__file__))]
    return f" habana_mp {hashlib.sha256(b''.join(file.read_bytes() for file in files)).hexdigest()}"


@contextmanager
def own_in_caches() -> Iterator[None]:
    """What is compiled inside is another graph for torch's caches on disk than what torch alone, or another version of this package, makes."""
    round_trips.keep(_is_own)
    tag = torch.compiler.config.cache_key_tag
    torch.compiler.config.cache_key_tag = tag if _is_own() else tag + _tag()
    try:
        yield
    finally:
        torch.compiler.config.cache_key_tag = tag


def _is_own() -> bool:
    return torch.compiler.config.cache_key_tag.endswith(_tag())


def table() -> dict[Any, Callable[..., Any]]:
    """The formulas of torch, but for these. Has a name in a module: Inductor pickles it."""
    of_torch = _TORCHS[0]()
    own: dict[Any, Callable[..., Any]] = {_BMM: functools.partial(_bmm_in_float32, of_torch[_BMM])}
    for op, formula in of_torch.items():
        if str(op) in _NORMS:
            own[op] = functools.partial(_norm_in_float32, formula, _NORMS[str(op)])
        elif str(op) == _SOFTMAX:
            own[op] = functools.partial(_softmax_of_no_attention, formula)
    own.update(pointwise.formulas(of_torch))
    # The lists are about the op that a formula describes, not about the ops in it.
    return {**of_torch, **{op: with_casts_off(formula, True) for op, formula in own.items()}}


def _norm_in_float32(of_torch: Callable[..., Any], place: int, *args: Any) -> Any:
    low, weight = args[0].dtype, args[place]
    if low not in LOW_DTYPES or weight is None or weight.dtype != torch.float32:
        return of_torch(*args)
    first, *others = of_torch(*(each.float() if isinstance(each, torch.Tensor) else each for each in args))
    return None if first is None else first.to(low), *others


def _bmm_in_float32(
    of_torch: Callable[..., Any], rows: torch.Tensor, columns: torch.Tensor, *args: Any, **kwargs: Any
) -> Any:
    of_one = any(isinstance(size, int) and size == 1 for size in (rows.shape[1], columns.shape[2]))
    if not of_one or rows.device.type != "cpu" or rows.dtype not in LOW_DTYPES or args or kwargs:
        return of_torch(rows, columns, *args, **kwargs)
    return (rows.float().unsqueeze(-1) * columns.float().unsqueeze(1)).sum(2).to(rows.dtype)


def _softmax_of_no_attention(of_torch: Callable[..., Any], x: torch.Tensor, dim: int, half_to_float: bool) -> Any:
    if x.dim() == 0 or x.device.type != "cpu":
        return of_torch(x, dim, half_to_float)
    wide = x.float() if x.dtype in LOW_DTYPES else x
    powers = torch.exp(wide - wide.amax(dim).unsqueeze(dim))
    result = powers / powers.sum(dim).unsqueeze(dim)
    return result if half_to_float else result.to(x.dtype)
