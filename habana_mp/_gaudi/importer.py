"""Finds and makes the modules that scripts for Gaudi import. What they hold is written in the other files of this folder."""

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

import habana_mp._core as _core
from habana_mp._convert.conversion import end_cli_default
from habana_mp._hpu import gaudi_flags, torch_hpu
from habana_mp._hpu.mapping import DEVICE_VARIABLE, map_chosen
from habana_mp._policy.environment import read_environment
from habana_mp._torch_private import FIND_SPEC

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_XPU_AMP = "torch.xpu.amp"
_HPU = "habana_mp._hpu.torch_hpu"
_FOR_CHILDREN = str(Path(__file__).parent / "for_children")
_NOT_IMPORTING = (str(Path(__file__).parent) + os.sep, str(Path(importlib.__file__).parent) + os.sep, "<frozen ")
_ALL = "*"  # what torch.hpu has
_OURS = "habana_mp.gaudi"
# module -> where its names are at home, and the names
_CONTENTS: Mapping[str, tuple[str, str]] = {
    "hmp": (_OURS, "hmp"),
    "habana_frameworks": ("", ""),
    "habana_frameworks.torch": ("", ""),
    "habana_frameworks.torch.core": (f"{_OURS}.core", "is_enabled_weight_permute_pass mark_step"),
    "habana_frameworks.torch.core.hccl": (f"{_OURS}.distributed", "initialize_distributed_hpu"),
    "habana_frameworks.torch.distributed": ("", ""),
    "habana_frameworks.torch.distributed.hccl": (f"{_OURS}.distributed", "initialize_distributed_hpu"),
    "habana_frameworks.torch.hpex": (_OURS, "hmp"),
    "habana_frameworks.torch.hpex.kernels": (f"{_OURS}.kernels", "EmbeddingBag EmbeddingBagPreProc"),
    "habana_frameworks.torch.hpex.normalization": (f"{_OURS}.normalization", "FusedClipNorm"),
    "habana_frameworks.torch.hpex.optimizers": (
        f"{_OURS}.optimizers",
        "FusedAdagrad FusedAdamW FusedLamb FusedSGD",
    ),
    "habana_frameworks.torch.hpu": (_HPU, _ALL),
    "habana_frameworks.torch.hpu.random": (_HPU, _ALL),
    "habana_frameworks.torch.utils": ("", ""),
    "habana_frameworks.torch.utils.debug": ("", ""),
    "habana_frameworks.torch.utils.experimental": (f"{_OURS}.utils", "_get_device_type synDeviceType"),
    "habana_frameworks.torch.utils.library_loader": (f"{_OURS}.utils", "load_habana_module"),
    _XPU_AMP: (f"{_OURS}.xpu", "autocast"),
}


def install() -> None:
    """Make the modules of the table importable from here on; a second call does nothing."""
    if not any(isinstance(finder, _Importer) for finder in sys.meta_path):
        sys.meta_path.append(_Importer())
    # A script may say torch.xpu.amp.autocast without an import of its own.
    if not hasattr(torch.xpu, "amp"):
        importlib.import_module(_XPU_AMP)


def pass_to_children() -> None:
    """Make the modules importable, with the same device behind "hpu", in Python processes that this one starts."""
    device = _core.hpu_mapped_to()
    if device is None:
        return
    os.environ[DEVICE_VARIABLE] = device
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if _FOR_CHILDREN not in paths:
        # The first, so that its sitecustomize is found; that runs the environment's own.
        os.environ["PYTHONPATH"] = os.pathsep.join([_FOR_CHILDREN, *filter(None, paths)])


def _names(module: str) -> list[str]:
    """What a module of the table has: the names of its line and the modules below it."""
    below = (name.rpartition(".") for name in _CONTENTS)
    names = _CONTENTS[module][1]
    own = dir(torch_hpu) if names == _ALL else names.split()
    return sorted({*own, *(name for parent, _, name in below if parent == module)})


def _not_here(module: str, name: str) -> str:
    there = ", ".join(_names(module)) or "nothing in it"
    return f"habana_mp.gaudi has no '{module}.{name}'; the real one is not installed, and of {module} there is: {there}"


def _importing() -> FrameType | None:
    """The frame whose import statement a module is made for."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_IMPORTING):
        frame = frame.f_back
    return frame


def _is_of_script(frame: FrameType | None) -> bool:
    """Whether code is a script's, or of a module beside it. An installed library that looks for a Gaudi asks for no casts."""
    return frame is not None and not {"site-packages", "dist-packages"} & {*Path(frame.f_code.co_filename).parts}


def _is_probe() -> bool:
    """Whether importlib.util.find_spec asks, which takes None for an answer."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") in (__name__, FIND_SPEC):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") == "importlib.util"


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> Any:
        below = f"{self.__name__}.{name}"
        if below in _CONTENTS:  # `import habana_frameworks.torch as ht; ht.hpu` works with the real one
            return importlib.import_module(below)
        if _CONTENTS[self.__name__][1] == _ALL:
            with suppress(AttributeError):
                return getattr(torch_hpu, name)
        # Python asks for its own names (__file__, __wrapped__, ...) and takes the plain answer.
        message = f"{self.__name__}.{name}" if name.startswith("__") else _not_here(self.__name__, name)
        raise AttributeError(message, name=name, obj=self)

    def __dir__(self) -> list[str]:
        return _names(self.__name__)


class _Importer(MetaPathFinder, Loader):
    """The last finder that Python asks, so that a real package wins, also one that lacks what the table has."""

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        parent, _, name = fullname.rpartition(".")
        if fullname in _CONTENTS and fullname != _XPU_AMP and torch_hpu.asked_by_library(_importing()):
            return None
        is_below = isinstance(sys.modules.get(parent), _StandIn)
        if fullname in _CONTENTS and (is_below or not parent or fullname == _XPU_AMP):
            return ModuleSpec(fullname, self, is_package=True)
        if is_below and not _is_probe():
            # Under the name of what is missing in truth: `from module import name` swallows an error that names itself.
            raise ModuleNotFoundError(_not_here(parent, name), name=parent)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        read_environment()
        if "." not in module.__name__:
            # As on Gaudi: this import registers the device and reads the flags, which the script may have set just before.
            map_chosen()
            gaudi_flags.apply_log_masks()
        if module.__name__ != _XPU_AMP:
            pass_to_children()
            # A probe (`find_spec("habana_frameworks.torch")`) makes the outermost one.
            if module.__name__ != "habana_frameworks" and _is_of_script(_importing()):
                end_cli_default()
        home, names = _CONTENTS[module.__name__]
        for name in names.split() if names != _ALL else ():
            value = getattr(importlib.import_module(home), name)
            setattr(module, name, value)
            if isinstance(value, ModuleType):  # so that `from ...hpex.hmp import convert` finds this very module
                sys.modules[f"{module.__name__}.{name}"] = value
