"""Calls of ops and modules: each runs under every variant with inputs of its own, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_flatten, tree_map

from habana_mp import hmp
from zoo.cases import Began, Outcome, Run, dtypes_of, first_line
from zoo.cases.variants import LOW, Variant, variants


class Call(NamedTuple):
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


# Makes the calls anew for each run, so that none finds what another left; "float32" and "mixed" name the inputs.
Maker = Callable[[str], list[Call]]


def runs(make: Maker, skip: frozenset[tuple[str, str]]) -> Iterator[Run | Began]:
    for variant in variants(hmp.presets()):
        if variant in skip:
            continue
        yield Began(*variant)
        calls = {inputs: make(inputs) for inputs in ("float32", "mixed")}
        with variant.conversion():
            outcomes = {inputs: [_outcome(call, variant) for call in each] for inputs, each in calls.items()}
        for inputs, each in outcomes.items():
            yield Run(*variant, inputs, each)


def _outcome(call: Call, variant: Variant) -> Outcome:
    torch.manual_seed(0)
    try:
        with variant.region():
            result = call.function(*call.args, **call.kwargs)
    except Exception as error:
        return Outcome("forward", first_line(error))
    roots = [root for root in tree_flatten(result)[0] if isinstance(root, torch.Tensor) and root.requires_grad]
    try:
        if roots:
            torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
    except Exception as error:
        return Outcome("backward", first_line(error))
    return Outcome("ran", dtypes_of(result))


def copied(value: Any) -> Any:
    """The same arguments in tensors of their own."""
    return tree_map(lambda leaf: _copy(leaf) if isinstance(leaf, torch.Tensor) else leaf, value)


def lowered(value: Any) -> Any:
    """The float32 tensors in the low dtype."""
    return tree_map(lambda leaf: _lower(leaf) if isinstance(leaf, torch.Tensor) else leaf, value)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _lower(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype is not torch.float32:
        return tensor
    return tensor.detach().to(LOW).requires_grad_(tensor.requires_grad)
