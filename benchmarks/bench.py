"""What the benchmarks share: variants that take turns, rows with goals, pictures, and a section of docs/benchmarks.md each."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import torch

from habana_mp import hmp

if TYPE_CHECKING:
    import timeit
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from matplotlib.figure import Figure

HEAD = (
    "# Benchmarks\n\n"
    "Written by `make bench`. Variants that are compared take turns: each round visits every one of them, and the shortest run of "
    "each counts, so that what else the machine does matters little. Ratios say more than times.\n"
)
# Nothing is drawn behind a picture, and what is drawn has a contrast of 4 to 1 or so to white and to black alike.
INK = "#7b838c"
STYLE = {
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlesize": "medium",
    "font.size": 10,
    "grid.alpha": 0.3,
    "grid.color": INK,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "savefig.transparent": True,
    "svg.hashsalt": "habana_mp",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


@dataclass(frozen=True)
class Row:
    what: str
    measured: float
    unit: str
    goal: float | None = None
    beside: str = ""
    at_least: bool = False

    @property
    def reached(self) -> bool:
        return self.goal is None or (self.measured >= self.goal if self.at_least else self.measured <= self.goal)

    def goal_text(self) -> str:
        if self.goal is None:
            return ""
        return f"{'≥' if self.at_least else '≤'} {self.goal:g} {self.unit}{'' if self.reached else ' (missed)'}"


@dataclass(frozen=True)
class Report:
    """A section of a page of docs/: its rows, the text that shows them, and its pictures, drawn if they are asked for."""

    title: str
    rows: list[Row]
    text: str
    pictures: Mapping[str, Callable[[], Figure]] = field(default_factory=dict)
    head: str = HEAD  # of the page


@contextlib.contextmanager
def converted(policy: hmp.Policy | str | None = None, log: str = "") -> Iterator[None]:
    if log:
        os.environ["HABANA_MP_LOG"] = log
    hmp.convert(policy=policy)
    try:
        yield
    finally:
        hmp.revert()
        os.environ.pop("HABANA_MP_LOG", None)


def autocast() -> AbstractContextManager[Any]:
    return torch.autocast("cpu", torch.bfloat16)


def shortest(timer: timeit.Timer, runs: int, calls: int = 1, seconds: float = 0) -> float:
    """Seconds a call takes in the shortest run: of so many runs, and of more until so many seconds are over."""
    end = time.perf_counter() + seconds
    best = min(timer.repeat(runs, calls))
    while time.perf_counter() < end:
        best = min(best, timer.timeit(calls))
    return best / calls


def take_turns(visits: Mapping[str, Callable[[], float]], rounds: int, seconds: float = 0) -> dict[str, float]:
    """The least that each visit gives: in so many rounds, and in more until so many seconds are over."""
    best = dict.fromkeys(visits, float("inf"))
    end = time.perf_counter() + seconds
    while rounds > 0 or time.perf_counter() < end:
        rounds -= 1
        for name, visit in visits.items():
            best[name] = min(best[name], visit())
    return best


def table(header: list[str], lines: list[list[str]]) -> str:
    """The first column is text, the others are figures; one without a name is text again."""
    marks = ["---", *("---:" if name else "---" for name in header[1:])]
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, marks, *lines])


def table_of(rows: list[Row]) -> str:
    return table(
        ["what", "measured", "goal", ""],
        [[row.what, f"{row.measured:.3g} {row.unit}", row.goal_text(), row.beside] for row in rows],
    )


def machine() -> str:
    info = Path("/proc/cpuinfo").read_text()
    model = next((line.split(":")[1].strip() for line in info.splitlines() if line.startswith("model name")), "unknown")
    flags = next((line.split(":")[1].split() for line in info.splitlines() if line.startswith("flags")), [])
    kinds = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    cpus = len(os.sched_getaffinity(0))
    return (
        f"{model}, {cpus} CPUs ({', '.join(kinds)}), {platform.system()}, "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )


def run(description: str | None, measure: Callable[[bool], Report]) -> None:
    """The command line of a benchmark."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument(
        "--markdown", type=Path, metavar="PATH", help="write the section of this file, pictures beside it"
    )
    parser.add_argument("--quick", action="store_true", help="show that it works, with figures that mean nothing")
    arguments = parser.parse_args()
    report = measure(arguments.quick)
    if arguments.json:
        rows = [{**asdict(row), "reached": row.reached} for row in report.rows]
        print(json.dumps({"machine": machine(), "rows": rows}, indent=2))
    else:
        print(report.text)
    if arguments.markdown:
        write_section(arguments.markdown, report)


def write_section(path: Path, report: Report) -> None:
    """The other sections stay as they are."""
    parts = re.split(r"^## ", path.read_text(), flags=re.MULTILINE)[1:] if path.exists() else []
    sections = dict(part.split("\n", 1) for part in parts)
    sections[report.title] = f"Machine: {machine()}.\n\n{report.text}"
    path.write_text(report.head + "".join(f"\n## {title}\n\n{text.strip()}\n" for title, text in sections.items()))
    for name, draw in report.pictures.items():
        with mpl.rc_context(STYLE):
            draw().savefig(path.with_name(f"{name}.svg"), metadata={"Date": None})
