"""The suite's device part and the benchmarks on a machine with CUDA: `make gpu`. Writes the row "CUDA" of docs/versions.md, and docs/benchmarks-gpu.md.

The torch is that of the Python that runs this; no other one is installed. The environment build/gpu/venv sees its packages, adds the pins of the other
requirements, and has the package built into it, or a wheel of it. Where pip reaches no package index, requirements that are there already will do.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tools import environments
from tools.environments import PAGE, ROOT, CannotRun, Counts, counted, environment, logged, output
from tools.release_check import commit_now

FOLDER = ROOT / "build/gpu"
TESTS = "tests/devices"
BENCHMARKS = ("inference", "training", "decode", "casts", "overhead")
HEAD = "| device | what ran | on | result | date | commit |"
# What building, these tests and these benchmarks import. Each has a pin.
NEEDED = (
    "click graphviz Jinja2 msgspec networkx rich safetensors cmake ninja pybind11 scikit-build-core pytest pytest-timeout pytest-xdist matplotlib transformers"
).split()
_PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
_MINIMUM = re.search(r'"torch>=(\d+)\.(\d+)', _PROJECT)
_PATHS_OF_TESTS = re.search(r"^pythonpath = \[(.*)\]", _PROJECT, re.MULTILINE)
assert _MINIMUM
assert _PATHS_OF_TESTS
_PATHS = re.findall(r'"([^"]+)"', _PATHS_OF_TESTS[1])
OLDEST = int(_MINIMUM[1]), int(_MINIMUM[2])
ACCEPTED = f"make gpu takes a Python that has torch {OLDEST[0]}.{OLDEST[1]} or later and sees a CUDA device: make gpu PYTHON=/path/to/python"

# Prints what it finds. A torch that fails to be imported says why.
_LOOK = """
import json, platform
found = {"python": platform.python_version()}
try:
    import torch
    found |= {"torch": torch.__version__, "folder": torch.__path__[0], "runtime": torch.version.cuda or torch.version.hip}
    torch.cuda.init()
    found["device"] = torch.cuda.get_device_name()
except Exception as error:
    found["why"] = (str(error).strip() or repr(error)).splitlines()[0]
print(json.dumps(found))
"""
_ABSENT = """
import importlib.metadata, sys
def is_there(name):
    try:
        return bool(importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return False
print(*(name for name in sys.argv[1:] if not is_there(name)))
"""


class Found(NamedTuple):
    """A Python, its torch, and what that sees."""

    python: str
    torch: str = ""
    folder: str = ""  # of torch
    runtime: str | None = None
    device: str = ""
    why: str = ""  # it has no torch, or sees no device

    @property
    def refusal(self) -> str:
        """Why it cannot be used, in one line; empty if it can."""
        why = f" ({self.why})" if self.why else ""
        if not self.torch:
            return f"this Python cannot import torch{why}. {ACCEPTED}"
        version = re.match(r"(\d+)\.(\d+)", self.torch)
        if version is None or (int(version[1]), int(version[2])) < OLDEST:
            return f"torch {self.torch} is too old. {ACCEPTED}"
        if not self.device:
            return f"torch {self.torch} sees no CUDA device{why}. {ACCEPTED}"
        return ""

    def __str__(self) -> str:
        return f"{self.device}, CUDA {self.runtime}, torch {self.torch}, Python {self.python}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2, help="of the compiler and of pytest (2)")
    parser.add_argument("--wheel", type=Path, help="of the package, taken instead of a build: it needs no compiler")
    given = parser.parse_args(arguments)
    try:
        found = look(sys.executable)
        if found.refusal:
            raise CannotRun(found.refusal)  # noqa: TRY301
        return run(sys.executable, found, given.jobs, given.wheel)
    except CannotRun as why:
        print(why)
        return 1


def run(python: str, found: Found, jobs: int, wheel: Path | None) -> int:
    """1 if a test or a benchmark has failed, else 0."""
    print(f"==> {found}", flush=True)
    commit = commit_now()
    packages = [str(ROOT / "tools/system_packages.sh"), python]
    if wheel is None and subprocess.run(packages, cwd=ROOT, check=False).returncode:
        return 1  # it says why
    venv, results = FOLDER / "venv", FOLDER / "results"
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir(parents=True)
    print("==> the other requirements, into build/gpu/venv", flush=True)
    set_up(python, found, venv, results)
    if wheel is None:
        print("==> building habana_mp (five minutes the first time)", flush=True)
        options = ("--config-settings", f"build-dir={FOLDER / 'module'}")
        environments.build(venv, ROOT, results / "build.log", jobs, *options)
    else:
        print(f"==> {wheel}", flush=True)
        environments.install(venv, results / "build.log", "--no-deps", "--no-index", "--force-reinstall", str(wheel))
    print(f"==> {TESTS}", flush=True)
    counts = test(venv, results, jobs)
    print(f"{counts.passed} passed, {counts.failed} failed, {counts.skipped} skipped", flush=True)
    for name in counts.failures:
        print(f"    {name}")
    write_row(found, counts, commit if wheel is None else f"{wheel.name}, tests of {commit}")
    red = counts.failed > 0
    for name in BENCHMARKS:
        print(f"==> {name}", flush=True)
        red |= not benchmark(venv, results, name)
    print("==> docs/versions.md, docs/benchmarks-gpu.md")
    return int(red)


def look(python: str | Path) -> Found:
    done = subprocess.run([str(python), "-W", "ignore", "-c", _LOOK], capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotRun(f"{python} ended with {done.returncode} while it looked for a device. {ACCEPTED}")
    return Found(**json.loads(done.stdout.splitlines()[-1]))


def set_up(python: str, found: Found, venv: Path, results: Path) -> None:
    """The environment, with the torch of this Python and everything else by its pin, where pip can have it."""
    # One that was made for another Python or another torch is made anew.
    made_for, mark = f"{python} {found.python} {found.torch}", venv / ".made-for"
    if not mark.exists() or mark.read_text() != made_for:
        shutil.rmtree(venv, ignore_errors=True)
        environments.make(python, venv, results / "venv.log", "--system-site-packages")
        # A Python that belongs to an environment itself hands on the packages of the one below it, not its own.
        (packages,) = venv.glob("lib/python*/site-packages")
        (packages / "torch_of_this_machine.pth").write_text(f"{Path(found.folder).parent}\n")
        mark.write_text(made_for)
    try:
        environments.install_pins(venv, results)
    except CannotRun:
        missing = output(str(venv / "bin/python"), "-c", _ABSENT, *NEEDED).split()
        if missing:
            raise CannotRun(
                f"pip could not install the requirements ({results / 'requirements.log'}), and these are missing: {' '.join(missing)}. "
                f"Install them into {python}, or give pip a package index"
            ) from None
        print(
            f"    pip could not install the pins ({results / 'requirements.log'}): goes on with the versions that are there"
        )
    seen = look(venv / "bin/python")
    if (seen.torch, seen.folder) != (found.torch, found.folder):
        raise CannotRun(f"build/gpu/venv has torch {seen.torch} in {seen.folder}, not {found.torch} in {found.folder}")


def test(venv: Path, results: Path, jobs: int) -> Counts:
    report = results / "devices.xml"
    # A plugin that the Python may have warns that it measures nothing beside other workers. Nothing may find the package in ROOT, where it has no
    # core if a wheel was installed.
    paths = " ".join(path for path in _PATHS if path != ".")
    options = ["-p", "no:cacheprovider", "-p", "no:benchmark", "-n", str(jobs), "-o", f"pythonpath={paths}"]
    command = [str(venv / "bin/python"), "-m", "pytest", *options, str(ROOT / TESTS), f"--junitxml={report}"]
    with (results / "tests.log").open("w") as log:
        code = subprocess.run(
            command, cwd=FOLDER, env=environment(venv), stdout=log, stderr=subprocess.STDOUT, check=False
        ).returncode
    if code not in (0, 1):  # interrupted, or no test was found
        raise CannotRun(f"pytest ended with {code}: {log.name}")
    return counted(iter([report]))


def benchmark(venv: Path, results: Path, name: str, *options: str) -> bool:
    """Whether it ended well."""
    script = [str(venv / "bin/python"), f"benchmarks/{name}.py", "--device", "cuda", "--write", str(ROOT), *options]
    try:
        logged(results / f"{name}.log", script, env=environment(venv))
    except CannotRun as why:
        print(why)
        return False
    return True


def write_row(found: Found, counts: Counts, commit: str) -> None:
    result = f"{counts.passed} passed, {counts.failed} failed, {counts.skipped} skipped"
    date = dt.datetime.now(tz=dt.timezone.utc).date().isoformat()
    PAGE.write_text(with_row(PAGE.read_text(encoding="utf-8"), found, result, date, commit), encoding="utf-8")


def with_row(page: str, found: Found, result: str, date: str, commit: str) -> str:
    """The page with the row of CUDA, in the place of the one that it had."""
    row = f"| CUDA | `{TESTS}`: `make gpu` | {found} | {result} | {date} | {commit} |"
    return environments.with_row(page, HEAD, row, lambda line: line.split("|")[1].strip())


if __name__ == "__main__":
    raise SystemExit(main())
