"""The command line of a benchmark."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from harness import device, pages
from harness.device import DEVICE

sys.path.append(str(Path(__file__).parent.parent.parent))
from tools.release_check import commit_now

if TYPE_CHECKING:
    from collections.abc import Callable


def machine() -> str:
    lines = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
    facts = {key.strip(): value.strip() for key, _, value in lines}
    # Virtual machines name all CPUs of a maker alike, those too that multiply bfloat16 twice as fast as others.
    which = ", ".join(
        f"{name} {facts[key]}" for key, name in (("cpu family", "family"), ("model", "model")) if key in facts
    )
    model = facts.get("model name", "unknown") + (f" ({which})" if which else "")
    flags = facts.get("flags", "").split()
    kinds = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    cpus = len(os.sched_getaffinity(0))
    gpu = f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}, " if DEVICE == "cuda" else ""
    return (
        f"{gpu}{model}, {cpus} CPUs ({', '.join(kinds)}), {platform.system()}, "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )


def run(description: str | None, measure: Callable[[bool], pages.Report], devices: tuple[str, ...] = ("cpu",)) -> None:
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0], parents=[device.parser])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument(
        "--write", type=Path, metavar="ROOT", help="write results, goals, pages and pictures below this folder"
    )
    parser.add_argument("--quick", action="store_true", help="show that it works, with figures that mean nothing")
    arguments = parser.parse_args()
    if DEVICE not in devices:
        parser.error(f"this benchmark runs on {', '.join(devices)}")
    if DEVICE == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no CUDA device")
    commit = commit_now()
    report = measure(arguments.quick)
    if arguments.json:
        rows = [asdict(row) for row in report.rows]
        print(json.dumps({"machine": machine(), "commit": commit, "rows": rows}, indent=2))
    else:
        print(report.text)
    if arguments.write:
        write = pages.write if DEVICE == "cpu" else pages.write_gpu
        write(arguments.write, report, machine(), commit)
