"""Names of a policy that are limited to modules, in each model that is called: for programs that know no ``set_policies``.

Nothing is put on the modules, so copies and files of a model have none of it; but for models that ``torch.compile`` has compiled, since traced code
knows no other way.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

import habana_mp._core as _core
from habana_mp._autocast.module_lines import classes_by_path, lines_of
from habana_mp._autocast.set_policies import PoliciesHandle, PolicyHook, chosen_by_lines, is_ruled, put
from habana_mp._policy.policy import Policy
from habana_mp._scope.placed import placed
from habana_mp._show.warning import warn
from habana_mp._torch_private import SET_POLICIES, never_compiled


@contextmanager
def on_models_called(policy: Policy, *, own_thread: bool = False) -> Iterator[ModelsCalled]:
    """Puts the names of this policy alone in force, until the end of the block. Then it warns of names whose modules no called model had.

    What ``set_policies`` has put on a model stays. A part of a model that is called before the model has the names by paths that begin with that part,
    until the model itself is called. With ``own_thread`` models that other threads call have none of it, and compiled code
    has to run uncompiled.
    """
    models = ModelsCalled(policy, threading.get_ident() if own_thread else None)
    with ExitStack() as stack:
        if lines_of(policy):
            SET_POLICIES.need()
            placed(policy)
            stack.enter_context(_found())
        _active.append(models)
        stack.callback(_active.remove, models)
        stack.callback(models.leave)
        yield models
    if idle := [*lines_of(policy).idle(models.classes)]:
        warn(f"{policy.name} names modules that none of the called models has:\n" + "\n".join(idle))


class ModelsCalled:
    def __init__(self, policy: Policy, thread: int | None) -> None:
        self._lines = lines_of(policy)
        self._thread = thread
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
        if self._thread is None and any(name == "_orig_mod" for each in modules for name, _ in each.named_children()):
            self._handles.append(put(model, chosen))
            return
        for path, policy in chosen.items():
            self._hooks[model.get_submodule(path)] = PolicyHook(path, policy)

    def leave(self) -> None:
        for handle in self._handles:
            handle.remove()


_active: list[ModelsCalled] = []  # the innermost is the last, and rules alone


@never_compiled  # C calls it where compiled code begins
def _hook_of(module: torch.nn.Module) -> PolicyHook | None:
    """Called by src/scope/module_calls.cpp as a call of a module begins."""
    models = next((each for each in reversed(_active) if each._thread in (None, threading.get_ident())), None)
    return None if models is None else models.hook_of(module)


@contextmanager
def _found() -> Iterator[None]:
    if any(models._lines for models in _active):
        yield
        return
    _core.set_policy_finder(_hook_of)
    _core.surround_module_calls(SET_POLICIES.call, "found", on=True)
    try:
        yield
    finally:
        _core.surround_module_calls(SET_POLICIES.call, "found", on=False)
        _core.set_policy_finder(None)
