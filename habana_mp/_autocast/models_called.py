"""Names of a policy that are limited to modules, in each model that is called: for programs that know no ``set_policies``.

Nothing is put on the modules, so copies and files of a model have none of it; but for models that ``torch.compile`` has compiled, since global hooks
do nothing in traced code.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from habana_mp._autocast.module_lines import classes_by_path, lines_of
from habana_mp._autocast.set_policies import PoliciesHandle, PolicyHook, chosen_by_lines, is_ruled, put
from habana_mp._policy.policy import Policy
from habana_mp._scope.placed import placed
from habana_mp._show.warning import warn
from habana_mp._torch_private import SET_POLICIES

# torch.compile's warning that a compiled module calls hooks twice: ours do nothing in traced code.
_HOOKS_AND_COMPILE = r"Using `torch.compile\(module\)` when there are global hooks.*"


@contextmanager
def on_models_called(policy: Policy) -> Iterator[ModelsCalled]:
    """Puts the names of this policy alone in force, until the end of the block. Then it warns of names whose modules no called model had.

    What ``set_policies`` has put on a model stays. A part of a model that is called before the model has the names by paths that begin with that part,
    until the model itself is called.
    """
    models = ModelsCalled(policy)
    with ExitStack() as stack:
        if lines_of(policy):
            SET_POLICIES.need()
            placed(policy)
            stack.enter_context(_hooks())
        _active.append(models)
        stack.callback(_active.remove, models)
        stack.callback(models.leave)
        yield models
    if idle := [*lines_of(policy).idle(models.classes)]:
        warn(f"{policy.name} names modules that none of the called models has:\n" + "\n".join(idle))


class ModelsCalled:
    def __init__(self, policy: Policy) -> None:
        self._lines = lines_of(policy)
        self._known: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._hooks: weakref.WeakKeyDictionary[torch.nn.Module, PolicyHook] = weakref.WeakKeyDictionary()
        self._handles: list[PoliciesHandle] = []
        self.classes: dict[str, str] = {}  # of the modules of all models, by their paths

    def hook_of(self, module: torch.nn.Module) -> PolicyHook | None:
        # The outermost module is the first to be called, and the others are known from then on.
        if self._lines and module not in self._known:
            self.look_at(module)
        return self._hooks.get(module)

    def look_at(self, model: torch.nn.Module) -> None:
        modules = [*model.modules()]
        self._known.update(modules)
        for each in modules:  # a part may have been called alone before
            self._hooks.pop(each, None)
        if any(map(is_ruled, modules)):
            return
        self.classes.update(classes_by_path(model))
        chosen = chosen_by_lines(model, self._lines)
        if any(name == "_orig_mod" for each in modules for name, _ in each.named_children()):
            self._handles.append(put(model, chosen))
            return
        for path, policy in chosen.items():
            self._hooks[model.get_submodule(path)] = PolicyHook(path, policy)

    def leave(self) -> None:
        for handle in self._handles:
            handle.remove()


_active: list[ModelsCalled] = []  # the innermost is the last, and rules alone


def _enter(module: torch.nn.Module, _: Any) -> None:
    if not torch.compiler.is_compiling() and _active and (hook := _active[-1].hook_of(module)) is not None:
        hook.enter()


def _leave(module: torch.nn.Module, *_: Any) -> None:
    if torch.compiler.is_compiling():
        return
    for models in _active:
        if (hook := models._hooks.get(module)) is not None:
            hook.leave()


@contextmanager
def _hooks() -> Iterator[None]:
    """While there are several, the later ones do nothing: torch calls hooks of both kinds in the same order."""
    if any(models._lines for models in _active):
        yield
        return
    before = register_module_forward_pre_hook(_enter)
    after = register_module_forward_hook(_leave, always_call=True)
    warnings.filterwarnings("ignore", _HOOKS_AND_COMPILE)
    try:
        yield
    finally:
        before.remove()
        after.remove()
        for entry in [each for each in warnings.filters if getattr(each[1], "pattern", "") == _HOOKS_AND_COMPILE]:
            warnings.filters.remove(entry)  # type: ignore[attr-defined] # a list
