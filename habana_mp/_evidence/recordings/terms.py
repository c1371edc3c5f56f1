"""How two runs are compared: by what names run b has the modules of run a, and how near numbers must be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import habana_mp._core as _core
from habana_mp._show.module_path import ModulePath
from habana_mp._show.short import brief


@dataclass(frozen=True)
class Terms:
    modules: Mapping[str, str] = field(default_factory=dict)
    rtol: float = 0.0

    @classmethod
    def of(cls, modules: Mapping[str, str] | None, rtol: float) -> Terms:
        if not isinstance(rtol, (int, float)) or not 0 <= rtol < math.inf:
            raise ValueError(f"rtol must be a number, 0 or more, not {brief(rtol)}")
        modules = {} if modules is None else modules
        if not isinstance(modules, Mapping):
            raise TypeError(f'modules must be a mapping such as {{"blocks": "model.layers"}}, not {brief(modules)}')
        for old, new in modules.items():
            if not isinstance(old, str) or not isinstance(new, str):
                raise TypeError(f"modules must have paths of modules as keys and values, not {old!r}: {new!r}")
            if old.split(".").count("*") != new.split(".").count("*"):
                raise ValueError(f"modules: {old!r} and {new!r} must have the same number of *")
        return cls(modules, float(rtol))

    def names_in(self, run: _core.Recording) -> list[str]:
        """The modules of the sites of run a by the names of run b; none where all are the same."""
        return [self._name(site.module) for site in run.sites] if self.modules else []

    def _name(self, module: str) -> str:
        own = ModulePath.of(module)
        names = _names(own.path)
        by_length = sorted(self.modules.items(), key=lambda each: -len(_names(each[0])))
        for old, new in by_length:  # the longest path wins
            wanted = _names(old)
            if len(wanted) > len(names) or any(a not in ("*", b) for a, b in zip(wanted, names, strict=False)):
                continue
            starred = iter([b for a, b in zip(wanted, names, strict=False) if a == "*"])
            renamed = [next(starred) if name == "*" else name for name in _names(new)]
            return str(own._replace(path=".".join([*renamed, *names[len(wanted) :]])))
        return module


def _names(path: str) -> list[str]:
    return path.split(".") if path else []
