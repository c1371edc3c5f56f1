"""The test suite on each torch and Python that is supported: `make matrix`. Writes the table of docs/versions.md, a row a cell.

A cell has a clone of the last commit and an environment of its own under build/matrix/. It installs its torch, builds, runs the suite folder by
folder, and deletes the environment. What was done for this commit is not done again, nor is a folder of tests that was green at an earlier
commit if nothing changed but other folders of tests and what no test of it reads. Knows nothing of the package but how it is built.
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
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tools import environments
from tools.environments import PAGE, ROOT, CannotRun, counted, environment, logged, output

# torch and Python. A new torch is a row here, and one in docs/versions.md.
CELLS = ("2.11/3.10", "2.12/3.11", "2.13/3.11", "2.14/3.12", "2.15/3.12", "2.15/3.13")

FOLDER = ROOT / "build/matrix"
HEAD = "| torch | Python | passed | failed | skipped | minutes | date | commit |"
# What few folders of tests read, and which.
_READ_BY = {
    str(PAGE.relative_to(ROOT)): {"project", "tools"},
    "docs/": {"benchmarks", "cli", "gaudi", "packages", "project", "report", "scope", "tools"},
    "benchmarks/": {"benchmarks", "devices", "packages", "project", "tools"},
    "CHANGELOG.md": {"devices", "packages", "project"},
    "README.md": {"benchmarks", "devices", "gaudi", "packages", "project", "tools"},
    "tools/": {"benchmarks", "devices", "packages", "policy", "project", "tools"},
    "zoo/": {"benchmarks", "compiled", "devices", "evidence", "policy", "project", "report", "tools", "zoo"},
}
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


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "cells", nargs="*", metavar="CELL", help=f"torch/Python, or next; without any, {' '.join(CELLS)}"
    )
    parser.add_argument("--jobs", type=int, default=2, help="of the compiler and of pytest (2)")
    parser.add_argument("--keep", action="store_true", help="keep the environments, some 6 GB each")
    given = parser.parse_args(arguments)
    commit = output("git", "rev-parse", "--short=9", "HEAD")
    if output("git", "status", "--porcelain", "--untracked-files=no"):
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
        PAGE.write_text(with_row(PAGE.read_text(encoding="utf-8"), row), encoding="utf-8")
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
            if not _taken_over(folder, results, part, parts(tree)):
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


def with_row(page: str, row: Row) -> str:
    """The page with the row of a cell, in the place of the one that it had."""
    return environments.with_row(page, HEAD, str(row), _cell_of)


def _cell_of(line: str) -> tuple[int, ...]:
    torch, python = (re.match(r"\d+\.\d+", text.strip()) for text in line.split("|")[1:3])
    assert torch, line
    assert python, line
    return tuple(int(number) for part in (torch[0], python[0]) for number in part.split("."))


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
    installed, wanted = venv / ".requirements", "\n".join(environments.pins())
    if not installed.exists():
        free = shutil.disk_usage(FOLDER).free >> 30
        if free < _NEEDED_GIB:
            raise CannotRun(f"{free} GiB are free, and {_NEEDED_GIB} are needed")
        environments.make(python, venv, results / "venv.log")
        environments.install(venv, results / "torch.log", f"torch=={torch}.*", "numpy")
    elif installed.read_text() == wanted:  # else kept from an earlier commit
        return
    environments.install_pins(venv, results)
    installed.write_text(wanted)


def _build(tree: Path, venv: Path, results: Path, commit: str, jobs: int) -> None:
    built = tree / "build" / commit
    if built.exists():
        return
    _check_out(tree, results / "clone.log", commit)
    environments.build(venv, tree, results / "build.log", jobs, "--config-settings", "cmake.define.HABANA_MP_WERROR=ON")
    built.touch()


def _check_out(tree: Path, log: Path, commit: str) -> None:
    if not tree.exists():
        logged(log, ["git", "clone", "--quiet", "--no-checkout", str(ROOT), str(tree)])
    else:  # kept from an earlier commit; git fetches no abbreviated ones
        logged(
            log,
            ["git", "-C", str(tree), "fetch", "--quiet", "origin", output("git", "-C", str(ROOT), "rev-parse", commit)],
        )
    logged(log, ["git", "-C", str(tree), "checkout", "--quiet", "--force", "--detach", commit])


def _taken_over(folder: Path, results: Path, part: str, parts: Sequence[str]) -> bool:
    """Takes the results of this part from an earlier commit that differs in other parts alone, and where it was green."""
    for earlier in folder.glob(f"*/{part}.xml"):
        if earlier.parent == results or counted([earlier]).failed:
            continue
        changed = output("git", "diff", "--name-only", earlier.parent.name, results.name).splitlines()
        others = tuple(f"tests/{other}/" for other in parts if other != part)
        others += tuple(path for path, readers in _READ_BY.items() if part not in readers)
        if all(file.startswith(others) for file in changed):
            shutil.copy(earlier, results)
            shutil.copy(earlier.with_suffix(".seconds"), results)
            return True
    return False


def _test(tree: Path, venv: Path, results: Path, part: str, jobs: int) -> None:
    report = results / f"{part}.xml"
    if report.exists():
        return
    command = [str(venv / "bin/python"), "-m", "pytest", "-n", str(jobs), "-p", "no:cacheprovider", f"tests/{part}"]
    unfinished = report.with_suffix(".unfinished")
    started = time.monotonic()
    # Some tests compare with recordings of another process: here those of the torch that is developed with.
    ours = ROOT / ".venv/bin/python"
    other = {"RECORDING_PYTHON": str(ours)} if ours.exists() else {}
    with (results / f"{part}.log").open("w") as log:
        code = subprocess.run(
            [*command, f"--junitxml={unfinished}"],
            cwd=tree,
            env=environment(venv) | {"OMP_NUM_THREADS": "1"} | other,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    if code not in (0, 1):  # interrupted, or no test was found
        raise CannotRun(f"pytest ended with {code}: {log.name}")
    report.with_suffix(".seconds").write_text(str(time.monotonic() - started))
    unfinished.replace(report)


def _versions(venv: Path) -> list[str]:
    program = "import platform, torch; print(torch.__version__, platform.python_version())"
    return output(str(venv / "bin/python"), "-c", program).split()


if __name__ == "__main__":
    raise SystemExit(main())
