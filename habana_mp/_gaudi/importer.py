"""Makes the modules that scripts for Gaudi import. contents.py lists what they hold."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed

import habana_mp._core as _core
from habana_mp._convert.conversion import end_cli_default
from habana_mp._gaudi import contents, distributed, ops
from habana_mp._hpu import gaudi_flags, torch_hpu
from habana_mp._hpu.mapping import DEVICE_VARIABLE, is_real, map_chosen
from habana_mp._policy.environment import read_environment
from habana_mp._torch_private import FIND_SPEC

if TYPE_CHECKING:
    from collections.abc import Sequence

_FOR_CHILDREN = str(Path(__file__).parent / "for_children")
_NOT_IMPORTING = (str(Path(__file__).parent) + os.sep, str(Path(importlib.__file__).parent) + os.sep, "<frozen ")

_NOT_FOR_GAUDI = (
    "No module named {!r}: habana_mp shows it only to programs for Gaudi, and this one does not name it. "
    "If it is one, choose its device: habana-mp run --device cpu"
)


def install() -> None:
    """Make the modules importable from here on; a second call does nothing."""
    if not any(isinstance(finder, _Importer) for finder in sys.meta_path):
        sys.meta_path.append(_Importer())
    # A script may say torch.xpu.amp.autocast without an import of its own.
    if not hasattr(torch.xpu, "amp"):
        importlib.import_module(contents.XPU_AMP)


def make_ready() -> None:
    """What the first import of Habana's package does on Gaudi: the device is registered, and the flags of logging are read."""
    register_device()
    gaudi_flags.apply_log_masks()


def register_device() -> None:
    """Map "hpu", and register the backend "hccl" and the ops of Gaudi, unless a real package does."""
    if is_real():
        return
    if _core.hpu_mapped_to() is None:
        map_chosen()
    ops.define()
    if torch.distributed.is_available():
        distributed.register_hccl()


def pass_to_children() -> None:
    """Make the modules importable, with the same device behind "hpu", in Python processes that this one starts."""
    device = _core.hpu_mapped_to()
    if device is None:
        return
    os.environ[DEVICE_VARIABLE] = device
    os.environ.setdefault("DS_ACCELERATOR", "hpu")  # DeepSpeed's own choice would be another where there is a GPU
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if _FOR_CHILDREN not in paths:
        # The first, so that its sitecustomize is found; that runs the environment's own.
        os.environ["PYTHONPATH"] = os.pathsep.join([_FOR_CHILDREN, *filter(None, paths)])


def _not_here(module: str, name: str) -> str:
    full = f"{module}.{name}"
    if reason := contents.refusal(full):
        return f"habana_mp.gaudi has no '{full}': {reason}"
    near = contents.nearest(module, name)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"dir({module}) lists what there is"
    return f"habana_mp.gaudi has no '{full}', and the real one is not installed. {hint}"


def _importing() -> FrameType | None:
    """The frame whose import statement a module is made for."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_IMPORTING):
        frame = frame.f_back
    return frame


def _is_for_gaudi(frame: FrameType | None) -> bool:
    """Whether code that imports Habana's package is written for Gaudi: the script's, that of a module beside it or in its package, and a
    library's with Gaudi in its name, or called by one (optimum.habana). Any other installed library only looks for a Gaudi.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    package = main.name.partition(".")[0] if main else None
    is_first = True
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        is_installed = not {"site-packages", "dist-packages"}.isdisjoint(Path(frame.f_code.co_filename).parts)
        if is_first and (not is_installed or name.partition(".")[0] == package):
            return True
        if ("habana" in name or "gaudi" in name) and not name.startswith("habana_mp"):
            return True
        frame, is_first = frame.f_back, False
    return False


def _is_probe() -> bool:
    """Whether importlib.util.find_spec asks, which takes None for an answer."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") in (__name__, FIND_SPEC):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") == "importlib.util"


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> Any:
        below = f"{self.__name__}.{name}"
        if below in contents.HOMES:  # `import habana_frameworks.torch as ht; ht.hpu` works with the real one
            return importlib.import_module(below)
        # Python asks for its own names (__file__, __wrapped__, ...) and takes the plain answer.
        if name.startswith("__"):
            raise AttributeError(f"{self.__name__}.{name}", name=name, obj=self)
        with suppress(AttributeError):
            return contents.find(self.__name__, name)
        # Of this module as obj Python would guess a name, too.
        raise AttributeError(_not_here(self.__name__, name), name=name, obj=None)

    def __dir__(self) -> list[str]:
        return contents.names(self.__name__)


class _Importer(MetaPathFinder, Loader):
    """The last finder that Python asks, so that a real package wins, also one that lacks what contents.py has."""

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        parent, _, name = fullname.rpartition(".")
        is_ours = contents.is_here(fullname)
        if is_ours and fullname != contents.XPU_AMP:
            importing = _importing()
            if torch_hpu.asked_by_library(importing):
                return None
            if _core.hpu_mapped_to() is None and not _is_for_gaudi(importing):
                if _is_probe():
                    return None
                raise ModuleNotFoundError(_NOT_FOR_GAUDI.format(fullname), name=fullname)
        is_below = isinstance(sys.modules.get(parent), _StandIn)
        if is_ours and (is_below or not parent or fullname == contents.XPU_AMP):
            return ModuleSpec(fullname, self, is_package=True)
        if _is_probe():
            return None
        if is_below:
            # Under the name of what is missing in truth: `from module import name` swallows an error that names itself.
            raise ModuleNotFoundError(_not_here(parent, name), name=parent)
        if not parent and (reason := contents.refusal(fullname)):
            raise ModuleNotFoundError(f"habana_mp.gaudi has no {fullname!r}: {reason}", name=fullname)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        read_environment()
        if "." not in module.__name__:
            # The flags may have been set by the script just before.
            make_ready()
        if module.__name__ != contents.XPU_AMP:
            pass_to_children()
            # A probe (`find_spec("habana_frameworks.torch")`) makes the outermost one.
            if module.__name__ != "habana_frameworks":
                end_cli_default()
        if contents.HOMES.get(module.__name__) == torch_hpu.__name__:
            return  # what it has depends on the device
        for name in contents.names(module.__name__):
            if f"{module.__name__}.{name}" in contents.HOMES:
                continue
            value = contents.find(module.__name__, name)
            setattr(module, name, value)
            if isinstance(value, ModuleType):  # so that `from ...hpex.hmp import convert` finds this very module
                sys.modules[f"{module.__name__}.{name}"] = value
