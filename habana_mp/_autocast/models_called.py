"""Names of a policy that are limited to modules, put on each model that is called: for programs that know no ``set_policies``."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from habana_mp._autocast.module_lines import lines_of
from habana_mp._autocast.set_policies import PoliciesHandle, chosen_by_lines, is_ruled, put
from habana_mp._policy.policy import Policy
from habana_mp._scope.placed import placed
from habana_mp._show.warning import warn
from habana_mp._torch_private import SET_POLICIES


@contextmanager
def on_models_called(policy: Policy) -> Iterator[ModelsCalled | None]:
    """Until the end of the block; where no model that was called has the modules of a name, there is a warning then.

    What ``set_policies`` has put on a model stays. A part of a model that is called before the model gets the names by paths that begin with that part,
    until the model itself is called. None where the policy has no such names.
    """
    if not lines_of(policy):
        yield None
        return
    SET_POLICIES.need()
    placed(policy)
    models = ModelsCalled(policy)
    watching = register_module_forward_pre_hook(models.look)
    try:
        yield models
    finally:
        watching.remove()
        models.leave()
    if idle := [*lines_of(policy).idle(models.paths)]:
        warn(f"{policy.name} has names for modules that no model which was called has:\n" + "\n".join(idle))


class ModelsCalled:
    def __init__(self, policy: Policy) -> None:
        self._lines = lines_of(policy)
        self._known: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._own: weakref.WeakKeyDictionary[torch.nn.Module, PoliciesHandle] = weakref.WeakKeyDictionary()
        self.paths: set[str] = set()

    def look(self, module: torch.nn.Module, _: Any) -> None:
        # The outermost module is the first to be called, and the others are known from then on.
        if not torch.compiler.is_compiling() and module not in self._known:
            self.put(module)

    def put(self, model: torch.nn.Module) -> None:
        modules = [*model.modules()]
        self._known.update(modules)
        inner = [each for each in modules if each in self._own]
        for each in inner:  # it was called alone before
            self._own.pop(each).remove()
        if any(map(is_ruled, modules)):
            return
        self.paths.update(path for path, _ in model.named_modules())
        if chosen := chosen_by_lines(model, self._lines):
            self._own[model] = put(model, chosen)

    def leave(self) -> None:
        for handle in self._own.values():
            handle.remove()
        self._own.clear()
