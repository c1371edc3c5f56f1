"""The command line of a benchmark."""

from __future__ import annotations

import argparse
import json
import os
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from harness import pages

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from harness.rows import Row
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Report:
    """A section of a page of docs/: its rows, the text that shows them, and pictures that its text shows, drawn if they are asked for."""

    title: str
    rows: list[Row]
    text: str
    pictures: Mapping[str, Callable[[], Figure]] = field(default_factory=dict)
    page: str = "benchmarks-tables"
    head: str = pages.TABLES_HEAD  # of the page


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
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument(
        "--write", type=Path, metavar="ROOT", help="write results, goals, pages and pictures below this folder"
    )
    parser.add_argument("--quick", action="store_true", help="show that it works, with figures that mean nothing")
    arguments = parser.parse_args()
    report = measure(arguments.quick)
    if arguments.json:
        rows = [{**asdict(row), "reached": row.reached} for row in report.rows]
        print(json.dumps({"machine": machine(), "rows": rows}, indent=2))
    else:
        print(report.text)
    if arguments.write:
        pages.write(arguments.write, report, machine())
