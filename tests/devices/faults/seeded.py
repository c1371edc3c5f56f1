"""Faults seeded on purpose: which of them the tests of this folder find on the late device. ``make faults`` builds the package with all of
them in build/faults/ and has each fault in force in processes of its own, one for each seed of the device's delays.

table.py has them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from faults.table import FAULTS
from late_device import build

ROOT = Path(__file__).parents[3]
BUILD = ROOT / "build/faults"
SEEDS = (1, 2)
_SECONDS = 240  # of a process: some faults have a stream wait for ever
_VARIABLE = "HABANA_MP_FAULT"
# What the package is built from.
_PARTS = (
    "CHANGELOG.md",
    "CMakeLists.txt",
    "LICENSE",
    "LICENSES",
    "README.md",
    "pyproject.toml",
    "habana_mp",
    "src",
    "third_party",
    "tools",
)

# Of the C++ files that have faults, and of the Python files.
_CPP = f"""#ifndef HABANA_MP_FAULT
#define HABANA_MP_FAULT
#include <c10/core/StreamGuard.h>
#include <cstdlib>
#include <optional>
#include <string_view>
inline bool fault(std::string_view name) {{
  static const char* const seeded = std::getenv("{_VARIABLE}");
  return seeded != nullptr && name == seeded;
}}
#endif
"""
_PYTHON = f"""

def _fault(name: str) -> bool:
    import os

    return os.environ.get("{_VARIABLE}") == name
"""


class Found(NamedTuple):
    """What the tests make of a fault with one seed."""

    seed: int
    by: str | None
    """The first test that fails, or how the process ended; None where all tests pass."""


def seeded(root: Path = ROOT) -> dict[str, str]:
    """The text of each file that has faults, with all of them.

    Raises:
        ValueError: what a fault takes the place of is not in its file, or more than once, or has another fault in it.

    """
    texts: dict[str, str] = {}
    for rows in FAULTS.values():
        for name, (file, old, new) in rows.items():
            before = (root / file).read_text()
            if before.count(old) != 1:
                raise ValueError(
                    f"tests/devices/faults/table.py: {name!r}: {file} has {before.count(old)} times {old!r}, not once"
                )
            is_python = file.endswith(".py")
            text = texts.get(file) or (before + _PYTHON if is_python else _CPP + before)
            call = f'_fault("{name}")' if is_python else f'fault("{name}")'
            if old not in text:
                raise ValueError(f"tests/devices/faults/table.py: {name!r} is where another fault is")
            texts[file] = text.replace(old, re.sub(r"\bFAULT\b", call, new))
    return texts


def write(folder: Path, root: Path = ROOT) -> None:
    """A copy of the sources with the faults. What is there already is left as it is, so that it is not compiled again."""
    texts = seeded(root)

    def copy(source: str, target: str) -> None:
        text = texts.get(str(Path(source).relative_to(root)))
        content = Path(source).read_bytes() if text is None else text.encode()
        if not Path(target).exists() or Path(target).read_bytes() != content:
            Path(target).write_bytes(content)

    folder.mkdir(parents=True, exist_ok=True)
    for part in _PARTS:
        if (root / part).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(root / part, folder / part, dirs_exist_ok=True, copy_function=copy, ignore=ignored)
        elif (root / part).exists():
            copy(str(root / part), str(folder / part))


def run(name: str, file: str, seed: int, package: Path, library: Path) -> Found:
    """Runs the tests that are to find the fault."""
    paths = os.pathsep.join([str(package), *filter(None, sys.path[1:])])
    environment = {**os.environ, _VARIABLE: name, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    environment |= {"HABANA_MP_LATE_LIBRARY": str(library), "HABANA_MP_LATE_SEED": str(seed)}
    # Without -S the editable install of this tree would come before the package with the faults.
    command = [
        sys.executable,
        "-S",
        "-X",
        "faulthandler",
        "-c",
        "import sys, habana_mp, pytest; sys.exit(pytest.main(sys.argv[1:]))",
    ]
    options = ["-x", "-q", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), "-k", "not torch or autocast"]
    tests = ROOT / f"tests/devices/accelerator/test_{file}.py"
    try:
        done = subprocess.run(
            [*command, *options, str(tests)],
            cwd=package,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return Found(seed, "it did not end")
    if done.returncode == 0:
        return Found(seed, None)
    failed = re.search(r"^(?:FAILED|ERROR) \S*?(test_\w+\.py::.+?)(?: - |$)", done.stdout, re.MULTILINE)
    return Found(seed, failed[1] if failed else f"the process ended with {done.returncode}")


def main(names: Sequence[str]) -> int:
    """Of these faults, or of all. Returns how many were not found by each seed."""
    source, package = BUILD / "source", BUILD / "package"
    write(source)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
        "--no-build-isolation",
        "--no-deps",
    ]
    subprocess.run([*pip, "--upgrade", "--target", str(package), str(source)], check=True)
    library = build(BUILD)
    return report(names, package, library)


def report(names: Sequence[str], package: Path, library: Path) -> int:
    tried = found = 0
    for file, rows in FAULTS.items():
        for name in rows:
            if names and name not in names:
                continue
            results = [run(name, file, seed, package, library) for seed in SEEDS]
            tried += 1
            found += all(each.by is not None for each in results)
            print(
                f"{name}: " + "; ".join(f"seed {each.seed}: {each.by or 'NOT FOUND'}" for each in results), flush=True
            )
    print(f"{found} of {tried} faults found by each of the seeds {', '.join(map(str, SEEDS))}")
    return tried - found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
