"""Where the ops of torch live: every name through which Python code reaches one.

A home is an owner (a module, or torch.Tensor) and an attribute name. Knows nothing of policies; `candidates` in
src/policy/names.h returns the names that carry the rule of a home. Which names compute at all is a table of src/policy/op_traits.cpp.
"""  # (D16, D15)

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

import habana_mp._core as _core
from habana_mp._feature import Feature
from habana_mp._torch_private import FFT, FUNCTIONS, LINALG, NN, SPECIAL, VF


class Home(NamedTuple):
    """One name under which an op is reached. ``prefix`` is "linalg_", "fft_", "special_" or empty: torch's own name for the op has it."""

    owner: Any
    attribute: str
    prefix: str

    @property
    def path(self) -> str:
        """As pkgutil.resolve_name takes it: "torch.nn.functional:gelu", "torch:Tensor.mm"."""
        if self.owner is torch.Tensor:
            return f"torch:Tensor.{self.attribute}"
        return f"{self.owner.__name__}:{self.attribute}"

    @property
    def label(self) -> str:
        """As people write it: "torch.nn.functional.gelu"."""
        return self.path.replace(":", ".")

    @property
    def name(self) -> str:
        """The name that `candidates` is asked with."""
        own = self.attribute
        return own if own.startswith(self.prefix) else self.prefix + own

    @property
    def in_place(self) -> bool:
        """Whether the name says that argument 0 is written to: relu_, __iadd__."""  # (D12)
        return is_in_place(self.attribute)

    def function(self) -> Callable[..., Any]:
        """What torch itself has there, also while converted."""
        value: Any = getattr(self.owner, self.attribute)
        found: Callable[..., Any] = value.original if _is_patched(value) else value
        return found


def _is_patched(value: object) -> bool:
    # In C neither of the two types is the other's base, whatever the stub says.
    return isinstance(value, (_core.PatchedFunctionBase, _core.PatchedMethodBase))


_ARITHMETIC = "add sub mul matmul truediv div floordiv mod pow"
_BITWISE = "and or xor lshift rshift"

# Operators of Tensor that are ops; every other dunder method is the object protocol.
OPERATORS = frozenset(
    [f"__{form}{op}__" for op in f"{_ARITHMETIC} {_BITWISE}".split() for form in ("", "r", "i")]
    + [f"__{op}__" for op in "eq ne lt le gt ge neg pos abs invert getitem setitem contains".split()]
)
_IN_PLACE_OPERATORS = frozenset([f"__i{op}__" for op in f"{_ARITHMETIC} {_BITWISE}".split()] + ["__setitem__"])


def is_in_place(op: str) -> bool:
    """Whether the name of an op says that it writes to its first argument: relu_, __iadd__, iadd."""
    operator = op in _IN_PLACE_OPERATORS or f"__{op}__" in _IN_PLACE_OPERATORS
    return operator or (op.endswith("_") and not op.endswith("__"))


# Functions of torch.nn.functional that are no ops but helpers of its source.
_F_HELPERS = frozenset(
    "boolean_dispatch handle_torch_function has_torch_function has_torch_function_unary has_torch_function_variadic"
    " assert_int_or_pair".split()
)


@functools.cache
def homes() -> tuple[Home, ...]:
    """Every home in the installed torch. Names only: what they hold is asked anew at each conversion."""
    return tuple(_find_homes())


def _is_function(value: object) -> bool:
    return isinstance(value, (types.BuiltinFunctionType, types.FunctionType)) or _is_patched(value)


def _private_home(feature: Feature) -> Any:
    return feature.home if feature.works else None


def _find_homes() -> Iterator[Home]:
    aten = [name for name in dir(_private_home(FUNCTIONS)) if not name.startswith("__")]
    # torch.nn.functional comes first, so that an op that lives there too is named as users write it.
    for name, value in vars(F).items():
        if _is_function(value) and not name.startswith("_") and name not in _F_HELPERS:
            yield Home(F, name, "")
    for name in torch.functional.__all__:
        yield Home(torch, name, "")
        yield Home(torch.functional, name, "")
    vf = _private_home(VF)
    for name in aten:
        if _is_function(getattr(torch, name, None)) and name not in torch.functional.__all__:
            yield Home(torch, name, "")
        if vf is not None:
            yield Home(vf, name, "")
    for owner, prefix in (
        (torch.linalg, "linalg_"),
        (_private_home(LINALG), "linalg_"),
        (torch.fft, "fft_"),
        (_private_home(FFT), "fft_"),
        (torch.special, "special_"),
        (_private_home(SPECIAL), "special_"),
        (_private_home(NN), ""),
    ):
        for name, value in vars(owner).items() if owner is not None else ():
            if _is_function(value) and not name.startswith("__"):
                yield Home(owner, name, prefix)
    for name in dir(torch.Tensor):
        value = getattr(torch.Tensor, name)
        if name in OPERATORS or (not name.startswith("__") and callable(value) and not isinstance(value, type)):
            yield Home(torch.Tensor, name, "")


def ops() -> list[tuple[Any, list[Home]]]:
    """Each op that torch has now: the original object and its homes."""
    found: dict[int, tuple[Any, list[Home]]] = {}
    for home in homes():
        original = home.function()
        found.setdefault(id(original), (original, []))[1].append(home)
    return list(found.values())


# Tensor methods and functions of torch.functional that are written in Python and compute; the others are protocol and shape.
_PYTHON_COMPUTING = frozenset(
    "norm stft istft lu cdist chain_matmul einsum tensordot pca_lowrank svd_lowrank __rsub__ __rdiv__ __rtruediv__ __pow__"
    " __rpow__ __ipow__ __floordiv__ __rfloordiv__ __mod__ __rmod__ __matmul__ __rmatmul__ __idiv__ __itruediv__".split()
)


@functools.cache
def aten_tensor_arguments() -> dict[str, int]:
    return _core.aten_tensor_arguments()


def computes_on(home: Home, in_python: bool) -> int:
    """How many tensors the op computes on, at most: 0 for what is left out of the rest, 2 for "two or more". ``in_python``: torch has it as a function of
    Python.
    """  # (D15)
    name, own = home.name, home.attribute.removeprefix(home.prefix)
    if not _core.computes(name):
        return 0
    if own in OPERATORS:
        return 2 if own not in ("__neg__", "__abs__") else 1
    if in_python:
        return 2 if home.owner is F or own in _PYTHON_COMPUTING else 0
    return min(aten_tensor_arguments().get(name, aten_tensor_arguments().get(own, 0)), 2)
