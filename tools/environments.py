"""Environments that the package is built and tested in beside `.venv`: what `make matrix` and `make gpu` share.

Knows nothing of the package but how it is built.
"""

from __future__ import annotations

import os
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/versions.md"


class CannotRun(Exception):  # noqa: N818 - it may be for want of a Python
    """Why something could not be run to its end."""


class Counts(NamedTuple):
    """Of the tests of a run, and the names of those that failed."""

    passed: int
    failed: int
    skipped: int
    failures: tuple[str, ...]


def counted(files: Iterable[Path]) -> Counts:
    """Of reports of pytest in the form of JUnit. A test whose set-up or tear-down failed has failed, once."""
    passed = skipped = 0
    failures = set()
    for file in sorted(files):
        # Ours: pytest wrote it.
        for case in ET.parse(file).iter("testcase"):
            if case.find("failure") is not None or case.find("error") is not None:
                failures.add(f"{file.stem}: {case.get('classname')}::{case.get('name')}")
            elif case.find("skipped") is not None:
                skipped += 1
            else:
                passed += 1
    return Counts(passed, len(failures), skipped, tuple(sorted(failures)))


def with_row(page: str, head: str, row: str, key: Callable[[str], Any]) -> str:
    """The page with the row in the table of this head, in the place of the one with the same key. Rows are in the order of their keys."""
    lines = page.splitlines()
    first = lines.index(head) + 2
    after = next(number for number in range(first, len(lines) + 1) if not [*lines, ""][number].startswith("|"))
    rows = {key(line): line for line in lines[first:after]} | {key(row): row}
    return "\n".join([*lines[:first], *(rows[each] for each in sorted(rows)), *lines[after:], ""])


def pins() -> list[str]:
    """All requirements but torch, one a line."""
    return [
        line
        for name in ("requirements.txt", "requirements-dev.txt")
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines()
        if not line.startswith(("-r", "torch=="))
    ]


def make(python: str, venv: Path, log: Path, *options: str) -> None:
    """An environment of this Python, if it is not there yet."""
    if not (venv / "bin/python").exists():
        logged(log, [python, "-m", "venv", *options, str(venv)])


def install(venv: Path, log: Path, *what: str, folder: Path = ROOT, env: dict[str, str] | None = None) -> None:
    """By the pip of the environment."""
    pip = [str(venv / "bin/python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    logged(log, [*pip, *what], folder, env)


def install_pins(venv: Path, results: Path) -> None:
    """All requirements but torch: they may not choose another one."""
    file = results / "requirements.txt"
    file.write_text("\n".join(pins()))
    install(venv, results / "requirements.log", "--no-deps", "--requirement", str(file))


def build(venv: Path, tree: Path, log: Path, jobs: int, *options: str) -> None:
    """Builds the package of a tree into the environment, against the torch that is there."""
    env = environment(venv) | {"CMAKE_BUILD_PARALLEL_LEVEL": str(jobs)}
    install(venv, log, "--no-build-isolation", "--no-deps", "--editable", ".", *options, folder=tree, env=env)


def environment(venv: Path) -> dict[str, str]:
    """Programs of the environment first: pages of the documentation call habana-mp and torchrun."""
    clean = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV", "MAKEFLAGS")
    }
    return clean | {"PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}"}


def logged(log: Path, command: list[str], folder: Path = ROOT, env: dict[str, str] | None = None) -> None:
    """Runs the command. CannotRun with the end of the log if it fails."""
    with log.open("a") as file:
        done = subprocess.run(command, cwd=folder, env=env, stdout=file, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise CannotRun(f"{' '.join(command[:6])} ... failed: {log}\n{_tail(log)}")


def output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _tail(log: Path) -> str:
    return "".join(f"    {line}\n" for line in log.read_text(errors="replace").splitlines()[-12:])
