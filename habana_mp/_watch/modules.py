"""Has the core know which module or step of an optimizer runs, while a report is open."""

from __future__ import annotations

import types

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import habana_mp._core as _core
from habana_mp._scope.fork_lock import fork_lock
from habana_mp._torch_private import MODULE_CALLS

_hooks: list[torch.utils.hooks.RemovableHandle] = []
_watchers = 0
_lock = fork_lock()


def _in_optimizer(inside: bool) -> None:
    if not torch.compiler.is_compiling():  # traced code has no ops to be counted
        _core.set_in_optimizer(inside)


def watch_modules() -> None:
    """Each call needs an ``unwatch_modules``; modules and steps are watched from the first to the last."""
    global _watchers  # noqa: PLW0603 - torch has one list of global hooks
    with _lock:
        _watchers += 1
        if _watchers > 1:
            return
        _watch_calls(True)
        _hooks.append(register_optimizer_step_pre_hook(lambda *_: _in_optimizer(True)))
        _hooks.append(register_optimizer_step_post_hook(lambda *_: _in_optimizer(False)))


def unwatch_modules() -> None:
    global _watchers  # noqa: PLW0603 - see watch_modules
    with _lock:
        _watchers -= 1
        if _watchers > 0:
            return
        while _hooks:
            _hooks.pop().remove()
        _watch_calls(False)


def _watch_calls(on: bool) -> None:
    # A tool may have put an object of its own in the place of torch's function.
    if MODULE_CALLS.works and isinstance(MODULE_CALLS.call, types.FunctionType):
        _core.surround_module_calls(MODULE_CALLS.call, "watched", on)
