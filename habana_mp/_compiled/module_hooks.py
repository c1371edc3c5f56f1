"""Graphs see what ``set_policies`` does to a model after they were compiled.

Dynamo guards on the hooks that a module has, and not on having none: a graph of a model without policies would run for the same model with
policies, and for another model of the class. So from the first policy of a module on, graphs are guarded on that too. Those from before are
dropped once. Programs that set no policies keep the cheaper guards of torch.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from habana_mp._feature import whole
from habana_mp._scope.after_import import after_import
from habana_mp._torch_private import DYNAMO, HOOK_GUARDS


@functools.cache
def guard() -> None:
    """From now on a graph is not used for a module that has got policies since."""
    if whole(DYNAMO):
        torch.compiler.reset()
    after_import(DYNAMO, _guard_modules_without_hooks)


def _guard_modules_without_hooks() -> None:
    if not HOOK_GUARDS.works:
        return
    of_torch, hooks = HOOK_GUARDS.without_hooks, HOOK_GUARDS.place("hooks")[1]

    @functools.wraps(of_torch)
    def without_hooks(self: Any, guard: Any) -> None:
        if str(guard.name).endswith(f".{hooks}"):
            HOOK_GUARDS.length(self, guard)
        else:
            of_torch(self, guard)

    setattr(*HOOK_GUARDS.place("without_hooks"), without_hooks)
