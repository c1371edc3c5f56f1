"""Which torch the package is compiled for: CMake runs this file, and metadata of a wheel come from it (pyproject.toml).

pip and others build where nothing but the build requirements is installed, so torch is looked for outside of that environment:
it must be the torch that the package will be used with. ``HABANA_MP_TORCH`` names one or more instead, as folders between colons.
Knows the standard library alone, and does not import torch, which takes seconds.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

VARIABLE = "HABANA_MP_TORCH"
# Where `torch` would be imported from. What pip puts on the path is not asked for: see _environment.
_FIND = "import importlib.util as u, sys; s = u.find_spec('torch'); print(*sys.version_info[:2], s.origin if s else '')"


def torch_folders() -> list[Path]:
    """Folders of the package ``torch``, each with ``version.py``, ``include`` and ``lib``. SystemExit with a sentence where there is none."""
    given = os.environ.get(VARIABLE)
    folders = [Path(each).resolve() for each in given.split(os.pathsep)] if given else [_installed()]
    for folder in folders:
        missing = [name for name in ("version.py", "include", "lib") if not (folder / name).exists()]
        if missing:
            raise SystemExit(f"{folder} is no folder of the package torch: it has no {' and no '.join(missing)}.")
    return folders


def minor_version(folder: Path) -> tuple[int, int]:
    """Of the package torch in a folder: (2, 13)."""
    found = re.search(
        r"^__version__ = '(\d+)\.(\d+)", (folder / "version.py").read_text(encoding="utf-8"), re.MULTILINE
    )
    if found is None:
        raise SystemExit(f"{folder / 'version.py'} names no version.")
    return int(found[1]), int(found[2])


def _installed() -> Path:
    for python in _pythons():
        try:
            answer = subprocess.run(
                [python, "-c", _FIND], capture_output=True, text=True, check=True, cwd="/", env=_environment()
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        major, minor, origin = answer.stdout.rstrip("\n").split(" ", maxsplit=2)
        if origin and (int(major), int(minor)) == sys.version_info[:2]:
            return Path(origin).parent
    raise SystemExit(
        "habana_mp is compiled for the torch that it will be used with, and none is installed here. Install torch first "
        f"(pip install torch==2.13.0; 2.11 to 2.15 are supported), or name the folder of the package: {VARIABLE}=/path/to/site-packages/torch"
    )


def _pythons() -> Iterator[str]:
    """The one that runs this: pip builds with the Python that it installs for. Others build in an environment of their own, from within an active one."""
    yield sys.executable
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if folder := os.environ.get(variable):
            yield str(Path(folder) / "bin/python")


def _environment() -> dict[str, str]:
    """Without what pip hides the installed packages by."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONNOUSERSITE")}


class Requirement:
    """The provider of the requirement on torch (pyproject.toml): a wheel runs with the minor versions that it was compiled for."""

    def build_state(self, build_state: str) -> None:
        self._is_sdist = build_state == "sdist"

    def dynamic_wheel(self, _settings: Mapping[str, Any]) -> dict[str, bool]:
        return {"dependencies": True}

    def dynamic_metadata(self, settings: Mapping[str, Any], _project: Mapping[str, Any]) -> dict[str, list[str]]:
        if self._is_sdist:
            return {"dependencies": [settings["supported"]]}
        return {"dependencies": [requirement([minor_version(folder) for folder in torch_folders()])]}


def requirement(versions: list[tuple[int, int]]) -> str:
    """``torch>=2.11,<2.14,!=2.12.*`` of (2, 11) and (2, 13)."""
    (major, first), (_, last) = min(versions), max(versions)
    left_out = [minor for minor in range(first, last) if (major, minor) not in versions]
    return ",".join(
        [f"torch>={major}.{first}", f"<{major}.{last + 1}", *(f"!={major}.{minor}.*" for minor in left_out)]
    )


if __name__ == "__main__":
    print(*torch_folders(), sep=";")
