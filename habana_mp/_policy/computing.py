"""On how many tensors an op computes (D15). Which names compute at all is a table of src/policy/op_traits.cpp."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F  # noqa: N812 - as everybody calls it

import habana_mp._core as _core
from habana_mp._policy.homes import OPERATORS, Home

# Tensor methods and functions of torch.functional that are written in Python and compute; the others are protocol and shape.
_PYTHON_COMPUTING = frozenset(
    "norm stft istft lu cdist chain_matmul einsum tensordot pca_lowrank svd_lowrank __rsub__ __rdiv__ __rtruediv__ __pow__"
    " __rpow__ __ipow__ __floordiv__ __rfloordiv__ __mod__ __rmod__ __matmul__ __rmatmul__ __idiv__ __itruediv__".split()
)


@functools.cache
def aten_tensor_arguments() -> dict[str, int]:
    return _core.aten_tensor_arguments()


def computes_on(home: Home, original: Callable[..., Any]) -> int:
    """How many tensors the op computes on, at most: 0 for what D15 leaves out of the rest, 2 for "two or more"."""
    name, own = home.name, home.attribute.removeprefix(home.prefix)
    if not _core.computes(name):
        return 0
    if own in OPERATORS:
        return 2 if own not in ("__neg__", "__abs__") else 1
    if isinstance(original, types.FunctionType):
        return 2 if home.owner is F or own in _PYTHON_COMPUTING else 0
    return min(aten_tensor_arguments().get(name, aten_tensor_arguments().get(own, 0)), 2)
