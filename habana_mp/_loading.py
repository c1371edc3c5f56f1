"""Loads the compiled core that was built for the torch that is installed, or says in one sentence why there is none.

A package holds a core for each minor version of torch that it was compiled for: ``_built/torch2.13/_core.cpython-311-x86_64-linux-gnu.so``.
A minor version is what torch keeps its C++ interface for; its CPU and CUDA builds have the same.
"""

from __future__ import annotations

import importlib
import re
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

# Written by the build. An editable install has it in another folder than the rest of the package.
_BUILT = "habana_mp._built"
COMPILE = "pip install --force-reinstall --no-deps SOURCE, where SOURCE is a clone or habana_mp-*.tar.gz"


def load_core(path: list[str]) -> None:
    """Imports ``habana_mp._core``, the one for the torch that is installed. ``path`` is the package's ``__path__``.

    Raises:
        ImportError: there is none, it does not load, or this interpreter is not supported.

    """
    _check_interpreter()
    import torch

    torch_version = torch.__version__
    minor = ".".join(torch_version.split(".")[:2])
    try:
        built = torches(*importlib.import_module(_BUILT).__path__)
    except ModuleNotFoundError:
        raise ImportError(_not_built(path)) from None
    folder = built.get(minor)
    if folder is None:
        raise ImportError(
            f"habana_mp was compiled for torch {', '.join(built)}, and torch {torch_version} is installed. "
            f"Install a torch that it was compiled for, or compile it for this one: {COMPILE}."
        )
    if not any((folder / f"_core{suffix}").exists() for suffix in EXTENSION_SUFFIXES):
        version = ".".join(map(str, sys.version_info[:2]))
        raise ImportError(
            f"habana_mp was compiled for another Python than this {version}: install it with this Python."
        )
    path.insert(0, str(folder))  # in front of what an older build may have left
    try:
        importlib.import_module("habana_mp._core")
    except ImportError as error:
        raise ImportError(
            f"habana_mp was compiled for another build of torch {minor} than the installed {torch_version} ({error}). "
            f"Compile it for this one: {COMPILE}."
        ) from error


def torches(*built: str | Path) -> dict[str, Path]:
    """The versions of torch that cores in these folders were compiled for, the oldest first, and the folder of each core."""
    found: dict[str, Path] = {}
    folders = (folder for each in built for folder in Path(each).glob("torch*"))
    for folder in sorted(folders, key=lambda folder: [int(number) for number in re.findall(r"\d+", folder.name)]):
        found.setdefault(folder.name.removeprefix("torch"), folder)
    return found


def _check_interpreter() -> None:
    """ImportError on an interpreter that the core cannot run in. Before torch is imported, whose own errors there say less."""
    if "t" in sys.abiflags:
        raise ImportError(
            "habana_mp does not support free-threaded Python. Use the Python that has the GIL: python3.13, not python3.13t."
        )
    try:
        import _interpreters as interpreters  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        import _xxsubinterpreters as interpreters  # type: ignore[import-not-found, unused-ignore]
    if interpreters.get_current() != interpreters.get_main():
        raise ImportError(
            "habana_mp does not support sub-interpreters, and neither does torch. Import it in the main interpreter."
        )


def _not_built(path: list[str]) -> str:
    """A source tree: the current folder comes before the packages that are installed."""
    here = Path(path[0]).resolve()
    for entry in sys.path:
        installed = Path(entry or ".", "habana_mp").resolve()
        if installed != here and (installed / "__init__.py").exists() and torches(installed / "_built"):
            return (
                f"This is habana_mp's source tree, {here.parent}, which is not built. It hides the package that is installed in "
                f"{installed.parent}. Run Python from another folder, or build the tree: make build."
            )
    return "habana_mp is not built: run `make build` in its source tree, or install it with pip."
