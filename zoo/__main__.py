"""Runs what has not run yet and writes the pages: ``python -m zoo``. See ``make zoo``."""

from __future__ import annotations

import argparse
import fnmatch
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zoo.cases import Case
    from zoo.findings import Results

from zoo import EXACT_MEMORY

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
if not os.environ.items() >= EXACT_MEMORY.items():
    os.execve(sys.executable, [sys.executable, "-m", "zoo", *sys.argv[1:]], os.environ | EXACT_MEMORY)

DOCS = Path(__file__).parent.parent / "docs"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m zoo", description=__doc__)
    parser.add_argument("--only", metavar="PATTERN", help="run what matches, such as 'op/*linear*', and write no page")
    parser.add_argument(
        "--under", choices=["policies", "instruments", "compiled"], help="run the cases under these alone"
    )
    parser.add_argument("--fresh", action="store_true", help="run again what has run")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    arguments = parser.parse_args()

    from tools.release_check import commit_now
    from zoo import compiled, looked, page, workers
    from zoo.cases import all_cases, compiles, looks

    commit = commit_now()
    workers.preload()
    groups = {
        "policies": (all_cases, page, "compatibility.md"),
        "instruments": (looks.cases, looked, "instruments.md"),
        "compiled": (compiles.cases, compiled, "compiled.md"),
    }
    for under, (cases, pages, name) in groups.items():
        if arguments.under in (None, under):
            _show(_results(under, cases(), arguments), arguments, pages, DOCS / name, commit)


def _results(under: str, cases: list[Case], arguments: argparse.Namespace) -> Results:
    from zoo import results, workers

    file = results.path(under)
    file.parent.mkdir(parents=True, exist_ok=True)
    cases = [case for case in cases if fnmatch.fnmatch(case.label, arguments.only or "*")]
    if arguments.fresh:
        results.forget(file, {case.label for case in cases})
    done = results.read(file)
    left = [case for case in cases if case.label not in done]
    print(f"{len(cases)} cases under {under}, {len(left)} to run, results in {file}")
    start = time.monotonic()
    with file.open("a") as stream:
        for count, (case, runs) in enumerate(workers.finished(left, arguments.jobs), 1):
            stream.write(results.line(case, runs))
            stream.flush()
            done[case.label] = runs
            _progress(count, len(left), case.label, time.monotonic() - start)
    return {case.label: done[case.label] for case in cases}


def _show(chosen: Results, arguments: argparse.Namespace, pages: Any, to: Path, commit: str) -> None:
    if arguments.only:
        print(pages.text(chosen))
    else:
        to.write_text(pages.page(chosen, commit))
        print(f"==> {to}")


def _progress(count: int, total: int, label: str, seconds: float) -> None:
    """One line that changes in a terminal; elsewhere one line for each 100 cases."""
    text = f"{count}/{total}  {seconds / 60:4.1f} min  {label}"
    if sys.stdout.isatty():
        print(f"\r\033[K{text}", end="" if count < total else "\n", flush=True)
    elif count % 100 == 0 or count == total:
        print(text, flush=True)


main()
