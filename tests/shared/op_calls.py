"""Calls of torch's functions: those that the samples of torch's own test table (op_db) make, and those of operators."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from habana_mp import hmp

F32 = torch.float32
NAMESPACES = (
    (F, ""),
    (torch, ""),
    (torch._VF, ""),
    (torch.linalg, "linalg_"),
    (torch.fft, "fft_"),
    (torch.special, "special_"),
    (torch._C._nn, ""),
    (torch.Tensor, ""),
)


class Call(NamedTuple):
    """A call of a torch function, with where the function stands and the names under which a list may hold it."""

    label: str
    names: list[str]
    function: Callable[..., Any]
    owner: Any
    attribute: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Stop(Exception):  # noqa: N818 - not an error
    pass


class Interceptor(TorchFunctionMode):
    """Stops at the first call of a function that `wanted` accepts, and keeps it."""

    def __init__(self, wanted):
        super().__init__()
        self.wanted = wanted
        self.call = None

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if self.wanted(func):
            self.call = func, args, kwargs or {}
            raise Stop
        return func(*args, **(kwargs or {}))


def intercept(wanted, function, args, kwargs):
    with Interceptor(wanted) as mode, contextlib.suppress(Exception):
        function(*args, **kwargs)
    return mode.call


@functools.cache
def torch_functions():
    """Every function of torch by its id: the object, where it stands, and the names under which a list may hold it."""
    found = {}
    for owner, prefix in NAMESPACES:
        for name in dir(owner) if owner is not torch._VF else dir(torch._C._VariableFunctions):
            value = getattr(owner, name, None)
            callable_kinds = (
                types.BuiltinFunctionType,
                types.FunctionType,
                types.MethodDescriptorType,
                types.WrapperDescriptorType,
            )
            if isinstance(value, callable_kinds):
                entry = found.setdefault(id(value), (value, owner, name, []))
                entry[3].append(name if name.startswith(prefix) else prefix + name)
    return found


@functools.cache
def calls():
    """The calls of torch functions that the samples of op_db make, each (function, names of keywords) once."""
    from torch.testing._internal.common_methods_invocations import op_db

    assert not hmp.is_converted()
    functions, found = torch_functions(), {}
    for op in op_db:
        if F32 not in op.dtypes:
            continue
        variants = [op.op, op.method_variant, op.inplace_variant, op.operator_variant, op.inplace_operator_variant]
        for alias in op.aliases:
            variants += [alias.op, alias.method_variant, alias.inplace_variant]
        torch.default_generator.manual_seed(0)
        for count, sample in enumerate(op.sample_inputs_func(op, "cpu", F32, False)):
            if count == 2:
                break
            for variant in filter(None, variants):
                call = intercept(
                    lambda func: id(func) in functions and hasattr(func, "__name__"),
                    variant,
                    (sample.input, *sample.args),
                    sample.kwargs,
                )
                if call is None:
                    continue
                keep(found, *call)
    a, b = torch.rand(2, 2) + 1, torch.rand(2, 2) + 1
    for form in ("", "r", "i"):
        for operator in "add sub mul matmul truediv div floordiv mod pow".split():
            if function := getattr(torch.Tensor, f"__{form}{operator}__", None):
                for other in (b, b[0, 0], 2):
                    keep(found, function, (a, other), {})
    for function in (torch.Tensor.__neg__, torch.Tensor.__abs__, torch.Tensor.__pos__):
        keep(found, function, (a,), {})
    for place in (0, torch.tensor([1, 0]), a > 1.5):
        keep(found, torch.Tensor.__setitem__, (a, place, b[0, 0]), {})
        keep(found, torch.Tensor.__getitem__, (a, place), {})
    return tuple(sorted(found.values(), key=lambda call: call.label))


def keep(found, function, args, kwargs):
    _, owner, attribute, names = torch_functions()[id(function)]
    shape = tuple(kind(value) for value in args), tuple(kwargs)
    found.setdefault(
        (id(function), shape), Call(f"{owner.__name__}.{attribute}", names, function, owner, attribute, args, kwargs)
    )


def kind(value):
    if isinstance(value, (list, tuple)):
        return tuple(kind(item) for item in value[:4])
    return value.dim() == 0 if isinstance(value, torch.Tensor) else type(value)
