"""A feature that works by private names of torch or CPython. A name is looked for when its feature is used first, and those that a class or
a constant needs at import. Where it is missing, that feature is off, says so once in a warning or in its error, and all else works.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from types import ModuleType
from typing import Any

from habana_mp._show.warning import warn

_MISSING: Any = object()


class Feature:
    """What works by private names. ``lost`` says what is without them; the names have short ones here.

    A path is "module:attribute.attribute", and may end in "()._name" for what instances have, or "(name)" for a parameter.
    """

    def __init__(self, lost: str, /, **paths: str) -> None:
        self.lost = lost
        self.paths = paths
        self._has_warned = False
        self._works: bool | None = None

    @property
    def works(self) -> bool:
        """Whether all names are there; warns where one is not."""
        # Kept by hand: up to Python 3.11 functools has a lock for that, which a forked process may inherit taken.
        if self._works is None:
            missing = self._missing()
            if missing:
                self._warn(missing)
            self._works = not missing
        return self._works

    def need(self) -> None:
        """Raises RuntimeError where a name is not there."""
        if missing := self._missing():
            raise RuntimeError(_words(missing, self.lost))

    def get(self, name: str) -> Any:
        """What torch has there now; None, and no warning, where it has nothing."""
        value = _find(self.paths[name])
        return None if value is _MISSING else value

    def place(self, name: str) -> tuple[Any, str]:
        """Owner and attribute, for what is patched."""
        owner, _, attribute = self.paths[name].replace(":", ".").rpartition(".")
        module, _, path = self.paths[name].partition(":")
        return _find(f"{module}:{path.rpartition('.')[0]}") if "." in path else sys.modules[owner], attribute

    def of(self, instance: Any, name: str, *default: Any) -> Any:
        """An attribute of an instance. Without it the default, with a warning, or RuntimeError."""
        try:
            # Interned: Python's cache of attributes keeps each string that it is asked for.
            return getattr(instance, sys.intern(self.paths[name].rpartition(".")[2]))
        except AttributeError:
            if not default:
                raise RuntimeError(_words(self.paths[name], self.lost)) from None
            self._warn(self.paths[name])
            return default[0]

    def __getattr__(self, name: str) -> Any:
        """What torch has there now. Raises RuntimeError where it has nothing."""
        if name not in self.__dict__.get("paths", ()):
            raise AttributeError(name)
        value = _find(self.paths[name])
        if value is _MISSING:
            raise RuntimeError(_words(self.paths[name], self.lost))
        return value

    def _missing(self) -> str:
        return next((path for path in self.paths.values() if _find(path) is _MISSING), "")

    def _warn(self, path: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warn(_words(path, self.lost))


def _find(path: str) -> Any:
    module, _, name = path.partition(":")
    name, _, rest = name.partition("(")
    try:
        found: Any = functools.reduce(getattr, filter(None, name.split(".")), _imported(module))
    except (ImportError, AttributeError):
        return _MISSING
    if rest.endswith(")") and rest != ")":
        return found if rest[:-1] in inspect.signature(found).parameters else _MISSING
    return found


def whole(name: str) -> ModuleType | None:
    """The module, if it is imported, and to its end."""
    module = sys.modules.get(name)
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module


def _imported(name: str) -> ModuleType:
    """Without the lock that Python 3.10 takes for a module that is there already: a process forked meanwhile would wait for it for ever.

    A package comes before its module, as another thread may just import it: Python does not wait for its end, and each would wait for the other.
    """
    if parent := name.rpartition(".")[0]:
        _imported(parent)
    return whole(name) or importlib.import_module(name)


def the_generator(*paths: str) -> str:
    """The path of the first that is a generator function; all, which torch then has not, where none is."""
    return next((path for path in paths if inspect.isgeneratorfunction(_find(path))), " or ".join(paths))


def _words(path: str, lost: str) -> str:
    root = path.partition(":")[0].partition(".")[0]
    version = getattr(sys.modules.get(root), "__version__", None)
    who = f"{root} {version}" if version else f"Python {sys.version.partition(' ')[0]}"
    return f"{who} has no {path.replace(':', '.').replace('()', '')}: {lost}"
