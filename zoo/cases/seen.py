"""What a program can see of a call: the bits of its results, of what it was given, of gradients, weights and buffers, and random states."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_flatten

from zoo.cases.calls import Call

# Each thing that can be seen, by its name.
Seen = dict[str, bytes]


def seen(call: Call, result: Any) -> Seen:
    found = {f"result {place}": _digest(leaf) for place, leaf in enumerate(tree_flatten(result)[0])}
    for place, leaf in enumerate(tree_flatten((call.args, call.kwargs))[0]):
        if isinstance(leaf, torch.Tensor):
            found[f"input {place}"] = _digest(leaf)
            if leaf.is_leaf:
                found[f"gradient of input {place}"] = _digest(leaf.grad)
    if isinstance(call.function, torch.nn.Module):
        found.update({f"weight {name}": _digest(weight) for name, weight in call.function.named_parameters()})
        found.update({f"buffer {name}": _digest(buffer) for name, buffer in call.function.named_buffers()})
        found.update({f"gradient of {name}": _digest(each.grad) for name, each in call.function.named_parameters()})
    return found


def random_states() -> Seen:
    return {
        "random state of torch": _digest(torch.get_rng_state()),
        "random state of Python": repr(random.getstate()).encode(),
        "random state of NumPy": repr(np.random.get_state()).encode(),  # noqa: NPY002 - what programs use
    }


def seed() -> None:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002


def difference(one: Seen, other: Seen) -> str:
    """The names of the first that differ; empty where none does."""
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _digest(value: Any) -> bytes:
    if is_lazy(value):
        return b"not made yet"
    if not isinstance(value, torch.Tensor):
        return (
            repr(value).encode()
            if isinstance(value, (int, float, complex, str, type(None)))
            else type(value).__name__.encode()
        )
    made = hashlib.blake2b(f"{value.dtype} {tuple(value.shape)} {value.layout}".encode(), digest_size=16)
    for part in _parts(value.detach()):
        made.update(part)
    return made.digest()


def _parts(tensor: torch.Tensor) -> Iterator[bytes]:
    if tensor.layout is torch.sparse_coo:
        yield from (each for part in (tensor._indices(), tensor._values()) for each in _parts(part))
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (
            each for part in (tensor.crow_indices(), tensor.col_indices(), tensor.values()) for each in _parts(part)
        )
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (
            each for part in (tensor.ccol_indices(), tensor.row_indices(), tensor.values()) for each in _parts(part)
        )
    elif tensor.is_nested:
        yield from _parts(tensor.values() if tensor.layout is torch.jagged else tensor.contiguous().values())
    elif tensor.is_quantized:
        yield from _parts(tensor.int_repr())
    elif tensor.device.type == "cpu":
        row = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.reshape(-1))
        yield row.view(torch.uint8).numpy().tobytes()
