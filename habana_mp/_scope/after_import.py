"""What waits for a module of torch that is imported late: nothing here imports one."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

_Action = Callable[[], None]


def after_import(name: str, action: _Action) -> None:
    """Calls ``action`` once the module is imported: now, or after its import. The same action waits once."""
    if name in sys.modules:
        action()
    elif not any(isinstance(each, _Finder) and each.awaited == (name, action) for each in sys.meta_path):
        sys.meta_path.insert(0, _Finder(name, action))


class _Finder(importlib.abc.MetaPathFinder):
    """Notices the first import of a module."""

    def __init__(self, name: str, action: _Action) -> None:
        self.awaited = name, action

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.awaited[0]:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec


class _Loader(importlib.abc.Loader):
    """Loads a module, and then calls what waits for it."""

    def __init__(self, loader: importlib.abc.Loader, finder: _Finder) -> None:
        self.loader = loader
        self.finder = finder

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        name = self.finder.awaited[0]
        waiting = [each for each in sys.meta_path if isinstance(each, _Finder) and each.awaited[0] == name]
        for each in waiting:  # the import asks the first of them alone
            sys.meta_path.remove(each)
        self.loader.exec_module(module)
        for each in reversed(waiting) if self.finder in waiting else [self.finder]:
            each.awaited[1]()
