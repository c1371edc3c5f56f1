"""The ops of torch's own table, op_db, with all its samples. Mixed inputs: the first argument is bfloat16, the others float32."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from habana_mp._policy.homes import Home, homes
from zoo.cases import Began, Case, Outcome, Run
from zoo.cases.calls import Call, Maker, copied, lowered, runs
from zoo.cases.variants import PLAIN


def cases() -> list[Case]:
    from torch.testing._internal.common_methods_invocations import op_db

    return [Case("op", op.formatted_name, functools.partial(_runs, op)) for op in op_db]


def _runs(op: Any, skip: frozenset[tuple[str, str]]) -> Iterator[Run | Began]:
    make = maker(op)
    if make is None:
        yield Run(*PLAIN, "float32", [Outcome("forward", "no dtype on CPU")])
        return
    yield from runs(make, skip)


def maker(op: Any) -> Maker | None:
    """Of its calls with all samples; None if it has no dtype on the CPU."""
    preferred = (torch.float32, torch.complex64, torch.int64, *op.dtypes)
    dtype = next((dtype for dtype in preferred if dtype in op.dtypes), None)
    if dtype is None:
        return None
    torch.manual_seed(0)
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=op.supports_autograd))
    return lambda inputs: [_call(op, sample, inputs) for sample in samples]


def _call(op: Any, sample: Any, inputs: str) -> Call:
    first, args, kwargs = copied((sample.input, tuple(sample.args), dict(sample.kwargs)))
    if inputs == "mixed":
        first = [lowered(first[0]), *first[1:]] if isinstance(first, (list, tuple)) and first else lowered(first)
    return Call(_as_called(op.op), (first, *args), kwargs)


def _as_called(function: Callable[..., Any]) -> Callable[..., Any]:
    """The table holds originals, which convert cannot reach. Programs look the name up when they call: so does this."""
    home = _homes().get(id(function))
    if home is None:
        return function

    def called(*args: Any, **kwargs: Any) -> Any:
        return getattr(home.owner, home.attribute)(*args, **kwargs)

    return called


@functools.cache
def _homes() -> dict[int, Home]:
    """The first home of each original."""
    found: dict[int, Home] = {}
    for home in homes():
        found.setdefault(id(home.function()), home)
    return found
