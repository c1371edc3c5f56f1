"""What a training step does beside forward and backward runs without casts: the steps of optimizers and of schedulers, loss
scaling, averages of weights.
"""  # (D44)

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.optim.swa_utils
from torch.optim import Optimizer, lr_scheduler

import habana_mp._core as _core
from habana_mp._scope.without_casts import made_of, step_without_casts, subclasses, without_casts
from habana_mp._torch_private import OPTIMIZERS

_torch_hook_step = OPTIMIZERS.get("hook")
_hook_name = OPTIMIZERS.paths["hook"].rpartition(".")[2]
# For regions of autocast, for good; a conversion has the patches among its own.
_patches_of_autocast = _core.PatchSet()


def serve() -> None:
    """Put the patches in place for good, unless a conversion has. Every region asks: a search by path took half of the time of its making."""
    if getattr(Optimizer, _hook_name, None) is _torch_hook_step and OPTIMIZERS.works:
        _patches_of_autocast.install(patches())


def patches() -> Iterator[tuple[Any, ...]]:
    if _patches_of_autocast.installed():
        return
    yield from _of_optimizers()
    # A learning rate may be a tensor, and so may the scale of a loss: rounded ones are other ones.
    schedulers: list[type] = [getattr(lr_scheduler, name) for name in lr_scheduler.__all__]
    others = [
        *((scheduler, "step") for scheduler in schedulers if "step" in vars(scheduler)),
        (torch.optim.swa_utils.AveragedModel, "update_parameters"),
        *((torch.amp.GradScaler, name) for name in ("scale", "unscale_", "step", "update")),
    ]
    for owner, name in others:
        yield owner, name, without_casts(made_of(vars(owner)[name]))


def _of_optimizers() -> Iterator[tuple[Any, ...]]:
    """The first optimizer of a class has torch wrap the step of the class; the wrapper calls what one cell of it holds.

    So the cell is patched: a scheduler binds the wrapper itself to its optimizer. Hooks of the step would not do, because those behind
    it do not run after an exception.
    """
    if not OPTIMIZERS.works:
        return
    yield *OPTIMIZERS.place("hook"), staticmethod(_hook_step)
    cells = {id(cell): cell for each in subclasses(Optimizer) if (cell := _cell(vars(each).get("step"))) is not None}
    for cell in cells.values():
        step = made_of(cell.cell_contents)
        yield cell, "cell_contents", step_without_casts(step), step


def _hook_step(func: Callable[..., Any]) -> Callable[..., Any]:
    hooked: Callable[..., Any] = _torch_hook_step(func)
    cell = _cell(hooked)
    if cell is not None:
        cell.cell_contents = step_without_casts(made_of(func))
    return hooked


def _cell(step: Any) -> types.CellType | None:
    """Where the wrapper that torch has made of a step keeps it; torch.compile wraps some once more."""
    while step is not None:
        code: Any = getattr(step, "__code__", None)
        if code is not None and code in _torch_hook_step.__code__.co_consts:
            cell: types.CellType = step.__closure__[code.co_freevars.index("func")]
            return cell
        step = getattr(step, "__wrapped__", None)
    return None
