"""What waits for a module of torch that is imported late: nothing here imports one."""

from __future__ import annotations

import functools
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
    """Notices the first import of a module, and then calls what waits for it."""

    def __init__(self, name: str, action: _Action) -> None:
        self.awaited = name, action

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.awaited[0]:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            load = functools.partial(self._load, spec.loader)
            spec.loader.exec_module = load  # type: ignore[method-assign]
        return spec

    def _load(self, loader: importlib.abc.Loader, module: ModuleType) -> None:
        vars(loader).pop("exec_module", None)  # that of a zip file has other modules, too
        waiting = [each for each in sys.meta_path if isinstance(each, _Finder) and each.awaited[0] == self.awaited[0]]
        for each in waiting:  # the import asks the first of them alone
            sys.meta_path.remove(each)
        loader.exec_module(module)
        for each in reversed(waiting) if self in waiting else [self]:
            each.awaited[1]()
