"""The test suite on each torch and Python that is supported: `make matrix`. Writes the table of docs/versions.md, a row a cell.

A cell has a clone of the last commit and an environment of its own under build/matrix/. It installs its torch, builds, runs the suite folder by
folder, and deletes the environment. What was done for this commit is not done again. Knows nothing of the package but how it is built.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

# torch and Python. A new torch is a row here, and one in docs/versions.md.
CELLS = ("2.11/3.10", "2.12/3.11", "2.13/3.11", "2.14/3.12", "2.15/3.12", "2.15/3.13")

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/versions.md"
FOLDER = ROOT / "build/matrix"
HEAD = "| torch | Python | passed | failed | skipped | minutes | date | commit |"
_NEEDED_GIB = 15  # a CUDA build of torch with its libraries takes 6, and pip twice that while it installs


class Row(NamedTuple):
    """What a cell gave: a row of the table."""

    torch: str
    python: str
    passed: int
    failed: int
    skipped: int
    minutes: int
    date: str
    commit: str

    def __str__(self) -> str:
        return f"| {' | '.join(map(str, self))} |"


class Counts(NamedTuple):
    """Of the tests of a run, and the names of those that failed."""

    passed: int
    failed: int
    skipped: int
    failures: tuple[str, ...]


class CannotRun(Exception):  # noqa: N818 - it may be for want of a Python
    """Why a cell could not be run to its end."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "cells", nargs="*", metavar="CELL", help=f"torch/Python, or next; without any, {' '.join(CELLS)}"
    )
    parser.add_argument("--jobs", type=int, default=2, help="of the compiler and of pytest (2)")
    parser.add_argument("--keep", action="store_true", help="keep the environments, some 6 GB each")
    given = parser.parse_args(arguments)
    commit = _output("git", "rev-parse", "--short=9", "HEAD")
    if _output("git", "status", "--porcelain", "--untracked-files=no"):
        print(f"uncommitted changes are not tested: this is {commit}")
    red = False
    for cell in given.cells or CELLS:
        try:
            cell = next_cell() if cell == "next" else cell
            if not re.fullmatch(r"\d+\.\d+/\d+\.\d+", cell):
                raise CannotRun("a cell is torch/Python, such as 2.15/3.12, or next")  # noqa: TRY301
            row, failures = run(cell, commit, given.jobs, given.keep)
        except CannotRun as why:
            print(f"{cell}: {why}")
            red = True
            continue
        print(f"{cell}: {row.passed} passed, {row.failed} failed, {row.skipped} skipped, {row.minutes} minutes")
        for name in failures:
            print(f"    {name}")
        red |= row.failed > 0
        PAGE.write_text(with_row(PAGE.read_text(encoding="utf-8"), cell, row), encoding="utf-8")
    return int(red)


def next_cell() -> str:
    """The newest torch that the package index has, on the newest Python of the table."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "index", "versions", "torch", "--pre"],
        capture_output=True,
        text=True,
        check=False,
    )
    newest = re.search(r"^torch \((\d+\.\d+)", done.stdout, re.MULTILINE)
    if newest is None:
        raise CannotRun(f"the package index names no torch\n{done.stderr}")
    python = max((cell.partition("/")[2] for cell in CELLS), key=lambda text: [*map(int, text.split("."))])
    return f"{newest[1]}/{python}"


def run(cell: str, commit: str, jobs: int, keep: bool) -> tuple[Row, tuple[str, ...]]:
    """What was done for this commit is taken from its files, environment and all."""
    torch, _, version = cell.partition("/")
    folder = FOLDER / f"torch{torch}-py{version}"
    tree, venv, results = folder / "tree", folder / "venv", folder / commit
    done = results / "done"
    if not done.exists():
        python = _python(version)
        results.mkdir(parents=True, exist_ok=True)
        print(f"{cell}: logs in {results.relative_to(ROOT)}", flush=True)
        _set_up(torch, python, venv, results)
        _build(tree, venv, results, commit, jobs)
        for part in parts(tree):
            _test(tree, venv, results, part, jobs)
        done.write_text("\n".join([*_versions(venv), dt.datetime.now(tz=dt.timezone.utc).date().isoformat()]))
        if not keep:
            shutil.rmtree(venv)
            shutil.rmtree(tree)
    counts = counted(results.glob("*.xml"))
    seconds = sum(float(file.read_text()) for file in results.glob("*.seconds"))
    torch_version, python_version, date = done.read_text().splitlines()
    row = Row(
        torch_version, python_version, counts.passed, counts.failed, counts.skipped, round(seconds / 60), date, commit
    )
    return row, counts.failures


def parts(tree: Path) -> list[str]:
    return sorted({path.relative_to(tree / "tests").parts[0] for path in (tree / "tests").rglob("test_*.py")})


def counted(files: Iterator[Path]) -> Counts:
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


def with_row(page: str, cell: str, row: Row) -> str:
    """The page with the row of a cell, in the place of the one that it had."""
    lines = page.splitlines()
    first = lines.index(HEAD) + 2
    after = next(number for number in range(first, len(lines) + 1) if not [*lines, ""][number].startswith("|"))
    rows = {_cell_of(line): line for line in lines[first:after]} | {cell: str(row)}
    ordered = sorted(rows, key=lambda each: [int(number) for part in each.split("/") for number in part.split(".")])
    return "\n".join([*lines[:first], *(rows[each] for each in ordered), *lines[after:], ""])


def _cell_of(line: str) -> str:
    torch, python = (re.match(r"\d+\.\d+", text.strip()) for text in line.split("|")[1:3])
    assert torch, line
    assert python, line
    return f"{torch[0]}/{python[0]}"


def _python(version: str) -> str:
    """Of pyenv too, which need not have put it on the path."""
    roots = [Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"]
    found = [shutil.which(f"python{version}")]
    found += sorted(str(path) for root in roots for path in root.glob(f"{version}.*/bin/python{version}"))
    for each in filter(None, found):
        # A shim of pyenv stands on the path for versions that are switched off.
        if subprocess.run([each, "-c", "import venv, ensurepip"], capture_output=True, check=False).returncode == 0:
            return each
    raise CannotRun(f"there is no Python {version} here")


def _set_up(torch: str, python: str, venv: Path, results: Path) -> None:
    """torch first, as `make setup` does it; then the pins of the others, which may not choose another one."""
    installed = venv / ".requirements"
    if installed.exists():
        return
    free = shutil.disk_usage(FOLDER).free >> 30
    if free < _NEEDED_GIB:
        raise CannotRun(f"{free} GiB are free, and {_NEEDED_GIB} are needed")
    pip = [str(venv / "bin/python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    if not (venv / "bin/python").exists():
        _logged(results / "venv.log", [python, "-m", "venv", str(venv)])
    _logged(results / "torch.log", [*pip, f"torch=={torch}.*", "numpy"])
    pins = [
        line
        for name in ("requirements.txt", "requirements-dev.txt")
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines()
        if not line.startswith(("-r", "torch=="))
    ]
    (results / "requirements.txt").write_text("\n".join(pins))
    _logged(results / "requirements.log", [*pip, "--no-deps", "--requirement", str(results / "requirements.txt")])
    installed.touch()


def _build(tree: Path, venv: Path, results: Path, commit: str, jobs: int) -> None:
    built = tree / "build" / commit
    if built.exists():
        return
    _check_out(tree, results / "clone.log", commit)
    pip = [str(venv / "bin/python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    environment = _environment(venv) | {"CMAKE_BUILD_PARALLEL_LEVEL": str(jobs)}
    strict = ["-C", "cmake.define.HABANA_MP_WERROR=ON"]
    _logged(
        results / "build.log",
        [*pip, "--no-build-isolation", "--no-deps", "--editable", ".", *strict],
        tree,
        env=environment,
    )
    built.touch()


def _check_out(tree: Path, log: Path, commit: str) -> None:
    if not tree.exists():
        _logged(log, ["git", "clone", "--quiet", "--no-checkout", str(ROOT), str(tree)])
    else:  # kept from an earlier commit; git fetches no abbreviated ones
        _logged(log, ["git", "-C", str(tree), "fetch", "--quiet", "origin", _output("git", "rev-parse", commit)])
    _logged(log, ["git", "-C", str(tree), "checkout", "--quiet", "--force", "--detach", commit])


def _test(tree: Path, venv: Path, results: Path, part: str, jobs: int) -> None:
    report = results / f"{part}.xml"
    if report.exists():
        return
    command = [str(venv / "bin/python"), "-m", "pytest", "-n", str(jobs), "-p", "no:cacheprovider", f"tests/{part}"]
    unfinished = report.with_suffix(".unfinished")
    started = time.monotonic()
    with (results / f"{part}.log").open("w") as log:
        code = subprocess.run(
            [*command, f"--junitxml={unfinished}"],
            cwd=tree,
            env=_environment(venv) | {"OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    if code not in (0, 1):  # interrupted, or no test was found
        raise CannotRun(f"pytest ended with {code}: {log.name}")
    report.with_suffix(".seconds").write_text(str(time.monotonic() - started))
    unfinished.replace(report)


def _environment(venv: Path) -> dict[str, str]:
    """Programs of the environment first: pages of the documentation call habana-mp and torchrun."""
    clean = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV", "MAKEFLAGS")
    }
    return clean | {"PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}"}


def _versions(venv: Path) -> list[str]:
    program = "import platform, torch; print(torch.__version__, platform.python_version())"
    return _output(str(venv / "bin/python"), "-c", program).split()


def _logged(log: Path, command: list[str], folder: Path = ROOT, env: dict[str, str] | None = None) -> None:
    with log.open("a") as file:
        done = subprocess.run(command, cwd=folder, env=env, stdout=file, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise CannotRun(f"{' '.join(command[:6])} ... failed: {log}\n{_tail(log)}")


def _tail(log: Path) -> str:
    return "".join(f"    {line}\n" for line in log.read_text(errors="replace").splitlines()[-12:])


def _output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main())
