"""Lets a script written for Gaudi run unchanged where Habana's package is not installed.

    import habana_mp.gaudi
    from habana_frameworks.torch.hpex import hmp

Importing this module makes the part of `habana_frameworks` that is listed in `_CONTENTS` importable (F1, F213, F221).
A real `habana_frameworks` is left alone. There is no device behind it: nothing here moves a tensor anywhere.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from habana_mp import hmp

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["load_habana_module", "mark_step"]

_ROOT = "habana_frameworks"


def mark_step() -> None:
    """Do nothing: on Gaudi it runs the operations gathered so far (F213), here each one has run already."""


def load_habana_module() -> None:
    """Do nothing: on Gaudi it loads the libraries that register the device with PyTorch (F220)."""


_CONTENTS: Mapping[str, Mapping[str, Any]] = {
    _ROOT: {},
    f"{_ROOT}.torch": {},
    f"{_ROOT}.torch.core": {"mark_step": mark_step},
    f"{_ROOT}.torch.hpex": {"hmp": hmp},
    f"{_ROOT}.torch.utils": {},
    f"{_ROOT}.torch.utils.library_loader": {"load_habana_module": load_habana_module},
}


def _not_here(name: str) -> str:
    modules = [module for module in _CONTENTS if module.startswith(f"{_ROOT}.torch.")]
    names = [f"{module}.{attribute}" for module, attributes in _CONTENTS.items() for attribute in attributes]
    exists = ", ".join(sorted({*modules, *names}))
    return f"habana_mp.gaudi has no {name!r}; the real {_ROOT} is not installed, and of it there is: {exists}"


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> NoReturn:
        full_name = f"{self.__name__}.{name}"
        # Python asks for its own names (__file__, __wrapped__, ...) and takes the plain answer.
        raise AttributeError(full_name if name.startswith("__") else _not_here(full_name), name=name, obj=self)

    def __dir__(self) -> list[str]:
        below = (module.rpartition(".") for module in _CONTENTS)
        return sorted({*_CONTENTS[self.__name__], *(name for parent, _, name in below if parent == self.__name__)})


class _Importer(MetaPathFinder, Loader):
    """Finder and loader of the modules in `_CONTENTS`; the last one asked, so that a real package wins."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in _CONTENTS:
            return ModuleSpec(fullname, self, is_package=True)
        if path is not None and fullname.startswith(f"{_ROOT}."):
            # Under the name of what is missing in truth: `from module import name` swallows an error that names itself.
            raise ModuleNotFoundError(_not_here(fullname), name=_ROOT)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        for name, value in _CONTENTS[module.__name__].items():
            setattr(module, name, value)
            if isinstance(value, ModuleType):  # so that `from ...hpex.hmp import convert` finds this very module
                sys.modules[f"{module.__name__}.{name}"] = value


if _ROOT not in sys.modules and importlib.util.find_spec(_ROOT) is None:
    sys.meta_path.append(_Importer())
