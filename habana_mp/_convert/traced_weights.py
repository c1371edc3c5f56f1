"""The ops of ours that calls in traced code become, which take weights uncast (src/call/weight_ops.h): where weights are, and the call of the op."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

import habana_mp._core as _core
from habana_mp import _weights
from habana_mp._torch_private import WEIGHT_OPS, run_while_traced

_F = TypeVar("_F", bound=Callable[..., Any])
# Where tensors are in calls of the ops of src/call/weight_ops.inc.
WEIGHTS: frozenset[int | str] = frozenset((0, 1, 2, "weight", "bias", "other", "mat2"))


def constant(function: _F) -> _F:
    """A function that is not Dynamo's to read: it runs it while it traces, on constants."""

    @functools.wraps(function)  # Dynamo writes its name into the user's globals
    def run(*args: Any) -> Any:
        return function(*args)

    return run_while_traced(run)  # type: ignore[return-value]


# What runs in a graph does not see who else holds a weight, as at the dispatcher.
find_exports = constant(_weights.find_exports)


class WeightOp:
    """An op of ours, called as torch's function is."""

    def __init__(self, name: str) -> None:
        self.op: Any = getattr(torch.ops.habana_mp, name).default
        # Of its arguments, and whether each is a list of numbers.
        self.places: dict[int | str, bool] = {}
        schema = WEIGHT_OPS.of(self.op, "schema", None)
        for i, argument in enumerate(schema.arguments if schema is not None else ()):
            self.places[i] = self.places[argument.name] = isinstance(argument.type, torch.ListType)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype | None) -> Any:
        # An op takes no number in place of one for each dimension, as torch's functions do.
        given = {
            place: [value] if self.places[place] and not isinstance(value, (list, tuple)) else value
            for place, value in places(args, kwargs)
        }
        named = {name: given[name] for name in kwargs}
        return self.op(*[given[i] for i in range(len(args))], **named, weight_dtype=dtype, int8="", cached=True)


def places(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[int | str, Any]]:
    return [*enumerate(args), *kwargs.items()]


def is_parameter(tensor: torch.Tensor) -> bool:
    """In float32 on the CPU, and to be cast by an op of ours."""
    if not torch.compiler.is_dynamo_compiling():
        return _core.is_traced_parameter(tensor)
    return tensor.dtype == torch.float32 and tensor.device.type == "cpu" and isinstance(tensor, torch.nn.Parameter)
