"""How the calls of an op are written: what the casts of a patched op must know of its arguments."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

import habana_mp._core as _core
from habana_mp._policy.homes import Home


class CallForm(NamedTuple):
    """How the calls of one op are written; the fields are those of CallForm in src/convert/call_form.h."""

    in_place: bool = False
    norm: bool = False
    python: bool = False
    overridable: bool = False
    out: int = -1
    flag: int = -1
    flag_name: str | None = None
    flag_target: int = 0
    flag_target_name: str | None = None
    statistics: int = 0
    contiguous: bool = False
    compound: bool = False
    may_lack_low_kernel: bool = False


# The operators that torch passes to __torch_function__ under the name of a method.
_OVERRIDE_NAMES = {
    "__add__": "add", "__radd__": "add", "__iadd__": "add_", "__sub__": "sub", "__isub__": "sub_", "__mul__": "mul", "__rmul__": "mul",
    "__imul__": "mul_", "__truediv__": "div", "__itruediv__": "div_", "__div__": "div", "__idiv__": "div_", "__mod__": "remainder",
    "__imod__": "remainder_", "__ifloordiv__": "floor_divide_", "__matmul__": "matmul", "__ne__": "ne", "__lt__": "lt", "__le__": "le",
    "__gt__": "gt", "__ge__": "ge", "__rand__": "bitwise_and", "__ror__": "bitwise_or", "__rxor__": "bitwise_xor",
}  # fmt: skip


def override_function(home: Home, original: Callable[..., Any]) -> Callable[..., Any]:
    """The function that torch passes to ``__torch_function__`` when the op is called."""
    name = _OVERRIDE_NAMES.get(home.attribute)
    if name is None or home.owner is not torch.Tensor or isinstance(original, types.FunctionType):
        return original
    return Home(torch.Tensor, name, "").function()


def call_form(home: Home, original: Callable[..., Any]) -> dict[str, Any]:
    """The fields of a CallForm, read off the name of an op and, of Python functions, their parameters."""
    plain = home.attribute
    norm = _core.NORMS.get(plain)
    form: dict[str, Any] = {
        "in_place": home.in_place,
        "norm": norm is not None,
        "overridable": original in torch.overrides.get_testing_overrides(),
        "contiguous": plain in _core.CONTIGUOUS_OPS,
        "compound": _core.is_compound(home.name) and not home.in_place,
        "may_lack_low_kernel": _core.may_lack_low_kernel(home.name),
    }
    if norm is not None:
        form["statistics"] = norm[home.owner is F]
    return form | python_form(original) if isinstance(original, types.FunctionType) else form


def python_form(function: Callable[..., Any]) -> dict[str, Any]:
    """The fields that differ from their defaults in the form of a Python function."""
    # What it calls are patched ops, so it is no compound.
    form: dict[str, Any] = {"python": True, "compound": False}
    code = getattr(function, "__code__", None)
    parameters = code.co_varnames[: code.co_argcount] if code is not None else ()
    if "out" in parameters:
        form["out"] = parameters.index("out")
    # max_norm makes F.embedding renormalise its weight in place.
    for flag, target in (("inplace", "input"), ("max_norm", "weight")):
        if flag in parameters and target in parameters:
            form |= {
                "flag": parameters.index(flag),
                "flag_name": flag,
                "flag_target": parameters.index(target),
                "flag_target_name": target,
            }
    return form
