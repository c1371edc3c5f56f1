"""Hooks of all modules and optimizers that pass to the core which forward or step runs, while a report is open."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.nn.modules import module as _nn_module
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import habana_mp._core as _core
from habana_mp._scope.fork_lock import fork_lock

# torch.compile's warning that a compiled module calls hooks twice, which is no problem for ours.
_HOOKS_AND_COMPILE = r"Using `torch.compile\(module\)` when there are global hooks"
_hooks: list[torch.utils.hooks.RemovableHandle] = []
_watchers = 0
_lock = fork_lock()


class _ModuleHook(_core.ModuleHookBase):
    """Passes to the core, by its C slot, that a module's forward begins or ends. Traced code has no modules, so there it does nothing."""

    def __call__(self, *_args: Any) -> None:
        return None


_core.enable_vectorcall(_ModuleHook)
_entered, _left = _ModuleHook(False), _ModuleHook(True)


def _in_optimizer(inside: bool) -> None:
    if not torch.compiler.is_compiling():  # traced code has no ops to be counted
        _core.set_in_optimizer(inside)


def watch_modules() -> None:
    """Each call needs an ``unwatch_modules``; the hooks are there from the first to the last."""
    global _watchers  # noqa: PLW0603 - torch has one list of global hooks
    with _lock:
        _watchers += 1
        if _watchers > 1:
            return
        _hooks.append(_nn_module.register_module_forward_pre_hook(_entered))
        _hooks.append(_nn_module.register_module_forward_hook(_left, always_call=True))
        _hooks.append(register_optimizer_step_pre_hook(lambda *_: _in_optimizer(True)))
        _hooks.append(register_optimizer_step_post_hook(lambda *_: _in_optimizer(False)))
        warnings.filterwarnings("ignore", _HOOKS_AND_COMPILE)


def unwatch_modules() -> None:
    global _watchers  # noqa: PLW0603 - see watch_modules
    with _lock:
        _watchers -= 1
        if _watchers > 0:
            return
        while _hooks:
            _hooks.pop().remove()
        ours = [entry for entry in warnings.filters if getattr(entry[1], "pattern", "") == _HOOKS_AND_COMPILE]
        for entry in ours:
            warnings.filters.remove(entry)  # type: ignore[attr-defined]
