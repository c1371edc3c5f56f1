"""Where an op was called: the class of the root module and the path below it, "Net: encoder.layers.0". Its text is read here alone."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import NamedTuple


class ModulePath(NamedTuple):
    """Both are empty outside of modules."""

    root: str
    path: str

    @classmethod
    def of(cls, text: str) -> ModulePath:
        root, _, path = text.partition(": ")
        return cls(root, path)

    @classmethod
    def asked(cls, text: str, root: str) -> ModulePath:
        """As people ask for one below ``root``: also its path alone, and the class alone."""
        found = cls.of(text)
        if found.path or found.root == root:
            return found
        return cls(root, text)

    def __str__(self) -> str:
        return f"{self.root}: {self.path}" if self.path else self.root

    @property
    def name(self) -> str:
        """Without the class, where there is a path."""
        return self.path or self.root

    @property
    def starred(self) -> ModulePath:
        """With ``*`` for numbers."""
        return self._replace(path=re.sub(r"(?:^|(?<=[. ]))\d+(?=\.|$)", "*", self.path))

    @property
    def pattern(self) -> str:
        """The path as lists write it: ``*`` for numbers, and for what no list holds. "" is the root."""
        return re.sub(r"[^\w.*-]", "*", self.starred.path)

    def is_inside(self, asked: str) -> bool:
        """Whether it is the asked path or below it; ``*`` stands for one name. "" is outside of modules."""
        if not asked or not self.root:
            return asked == str(self)
        outer = ModulePath.asked(asked, self.root)
        names, wanted = _names(self.path), _names(outer.path)
        fits = all(asked in ("*", name) for asked, name in zip(wanted, names, strict=False))
        return outer.root == self.root and len(names) >= len(wanted) and fits


def _names(path: str) -> list[str]:
    return path.split(".") if path else []


def common(modules: Iterable[str]) -> str:
    """One text for some modules: the path itself, with ``*`` where numbers differ, or what their paths have in common."""
    distinct = sorted(set(modules))
    if len(distinct) < 2:
        return "".join(distinct)
    starred = sorted({str(ModulePath.of(module).starred) for module in distinct})
    if len(starred) == 1:
        return starred[0]
    names = zip(*(re.split(r"(?<=:) |\.", module) for module in starred), strict=False)
    same = [level[0] for level in itertools.takewhile(lambda level: len(set(level)) == 1, names)]
    if not same:
        return f"{len(distinct)} modules"
    root, *path = same
    return f"{root} {'.'.join(path)}".rstrip(": ") + f" ({len(distinct)} modules)"
