"""What a function uses and may change: the modules, optimizers, schedulers and generators that its code can reach by names."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.amp import GradScaler
from torch.optim import Optimizer, lr_scheduler

KINDS = (torch.nn.Module, Optimizer, torch.Generator, lr_scheduler.LRScheduler, GradScaler)
_MOST = 10_000  # objects that are looked at
_NOT_ENTERED = (types.ModuleType, type, str, bytes, int, float, complex, bool, torch.Tensor, torch.dtype, torch.device)


def reachable(steps: Iterable[Callable[..., Any]]) -> Iterator[Any]:
    """Each once: by closures, globals that the code names, defaults, bound objects, and what these hold."""
    waiting: list[Any] = list(steps)
    seen: dict[int, Any] = {}
    while waiting and len(seen) < _MOST:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, _NOT_ENTERED) or each is None:
            continue
        seen[id(each)] = each
        if isinstance(each, KINDS):
            yield each
        else:
            waiting += _held_by(each)


def _held_by(each: Any) -> list[Any]:
    if isinstance(each, types.FunctionType):
        cells = [cell.cell_contents for cell in each.__closure__ or () if not _is_empty(cell)]
        named = [each.__globals__[name] for name in _names_in(each.__code__) if name in each.__globals__]
        held = [*cells, *named, *(each.__defaults__ or ()), *(each.__kwdefaults__ or {}).values()]
    elif isinstance(each, types.MethodType):
        held = [each.__self__, each.__func__]
    elif isinstance(each, functools.partial):
        held = [each.func, *each.args, *each.keywords.values()]
    elif isinstance(each, dict):
        held = list(each.values())
    elif isinstance(each, (list, tuple, set, frozenset)):
        held = list(each)
    elif type(each).__module__.partition(".")[0] in ("torch", "habana_mp", "numpy"):
        held = []
    else:  # an object of the user's
        held = list(getattr(each, "__dict__", {}).values())
        if callable(each):
            held.append(vars(type(each)).get("__call__"))
    return held


def _is_empty(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - it raises
    except ValueError:
        return True
    return False


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)
