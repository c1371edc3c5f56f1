"""The modules whose forward runs, told to the core while somebody watches."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.nn.modules import module as _nn_module

import habana_mp._core as _core

# torch.compile's warning that a compiled module calls hooks twice: ours do not mind.
_HOOKS_AND_COMPILE = r"Using `torch.compile\(module\)` when there are global hooks"
_hooks: list[torch.utils.hooks.RemovableHandle] = []


class _ModuleHook(_core.ModuleHookBase):
    """Tells the core that a module's forward begins or ends, by its C slot. Graphs do not tell, so what is traced does nothing."""

    def __call__(self, *_args: Any) -> None:
        return None


_core.enable_vectorcall(_ModuleHook)
_entered, _left = _ModuleHook(False), _ModuleHook(True)


def watch_modules() -> None:
    _hooks.append(_nn_module.register_module_forward_pre_hook(_entered))
    _hooks.append(_nn_module.register_module_forward_hook(_left, always_call=True))
    warnings.filterwarnings("ignore", _HOOKS_AND_COMPILE)


def unwatch_modules() -> None:
    while _hooks:
        _hooks.pop().remove()
    ours = [entry for entry in warnings.filters if getattr(entry[1], "pattern", "") == _HOOKS_AND_COMPILE]
    for entry in ours:
        warnings.filters.remove(entry)  # type: ignore[attr-defined]
