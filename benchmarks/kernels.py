"""The cast kernels on raw arrays, beside memcpy: kernels.cpp measures them, and is built beside the C++ tests for it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.command import run
from harness.pages import Report
from harness.pictures import INK
from harness.rows import Row, elements, table, table_of
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build" / "core"
MAIN_CASTS = [("float32", "bfloat16"), ("bfloat16", "float32"), ("float32", "float16"), ("float16", "float32")]
COLORS = {"scalar": "#a877d6", "avx2": "#d9822b", "avx512": "#3f8fd8", "avx512_bf16": "#2fa866", "neon": "#2fa866"}

# By (table, variant, from, to, elements), then by run: GB/s.
Key = tuple[str, str, str, str, int]
Figures = dict[Key, dict[str, float]]


@dataclass(frozen=True)
class Effort:
    log2_elements: int
    kernel_seconds: float


FULL = Effort(26, kernel_seconds=0.1)
QUICK = Effort(18, kernel_seconds=0)


def kernel_figures(effort: Effort) -> Figures:
    tools = Path(sys.executable).parent
    configure = f"-G Ninja -DCMAKE_MAKE_PROGRAM={tools / 'ninja'} -DHABANA_MP_CORE_ONLY=ON -DHABANA_MP_WERROR=ON -DHABANA_MP_BENCHMARKS=ON"
    for command in (
        [tools / "cmake", *configure.split(), "-S", ROOT, "-B", BUILD],
        [tools / "cmake", "--build", BUILD, "--target", "kernels"],
    ):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0:
            sys.exit(done.stdout)
    command = [BUILD / "kernels", str(effort.kernel_seconds), str(effort.log2_elements)]
    lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    figures: Figures = {}
    for table_name, variant, start, end, count, name, speed in (json.loads(line).values() for line in lines):
        figures.setdefault((table_name, variant, start, end, count), {})[name] = speed
    return figures


def best_stores(runs: dict[str, float]) -> float:
    return max(runs["cached"], runs["streaming"])


def variants(figures: Figures) -> list[str]:
    return list(dict.fromkeys(key[1] for key in figures if key[0] == "variants"))


def memcpy_speed(figures: Figures, cast: tuple[str, str], count: int) -> float:
    return max(figures[("variants", name, *cast, count)]["memcpy"] for name in variants(figures))


def kernel_rows(figures: Figures, effort: Effort) -> list[Row]:
    count, fastest = 1 << effort.log2_elements, variants(figures)[-1]
    rows = []
    for start, end in MAIN_CASTS:
        runs = figures["variants", fastest, start, end, count]
        what = f"{start} -> {end}, {elements(count)} elements: kernel over memcpy of the same bytes"
        beside = f"{best_stores(runs):.1f} GB/s against {runs['memcpy']:.1f}"
        rows.append(Row(what, best_stores(runs) / runs["memcpy"], "x", beside))
    return rows


def variants_table(figures: Figures) -> str:
    names = variants(figures)
    lines = []
    for start, end, count in dict.fromkeys(key[2:] for key in figures if key[0] == "variants"):
        speeds = [best_stores(figures["variants", name, start, end, count]) for name in names]
        speeds.append(memcpy_speed(figures, (start, end), count))
        lines.append([f"{start} -> {end}, {elements(count)}", *(f"{speed:.1f}" for speed in speeds)])
    return table(["GB/s", *names, "memcpy"], lines)


def sizes_table(figures: Figures) -> str:
    found = {key[2:]: runs for key, runs in figures.items() if key[0] == "sizes"}
    lines = [
        [f"{start} -> {end}, {elements(count)}", *(f"{speed:.1f}" for speed in runs.values())]
        for (start, end, count), runs in found.items()
    ]
    return table(["GB/s", *next(iter(found.values()))], lines)


def transposed_table(figures: Figures) -> str:
    found: dict[tuple[str, str, str], dict[int, float]] = {}
    for (name, variant, start, end, count), runs in figures.items():
        if name == "transposed":
            found.setdefault((start, end, variant), {})[count] = best_stores(runs)
    lines = [
        [f"{start} -> {end}, {variant}", *(f"{speed:.1f}" for speed in speeds.values())]
        for (start, end, variant), speeds in found.items()
    ]
    sides = [math.isqrt(count) for count in next(iter(found.values()))]
    return table(["GB/s", *(f"{side} x {side}" for side in sides)], lines)


def draw_kernels(figures: Figures) -> Figure:
    figure = Figure(figsize=(10, 4), layout="constrained")
    names = variants(figures)
    counts = list(dict.fromkeys(key[4] for key in figures if key[0] == "variants"))
    panels = figure.subplots(1, len(counts))
    for axes, count in zip(panels, counts, strict=True):
        draw_variants(axes, figures, names, count)
        axes.set_title(f"{elements(count)} elements")
    panels[0].set_ylabel("GB/s read and written")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(names) + 1)
    return figure


def draw_variants(axes: Axes, figures: Figures, names: list[str], count: int) -> None:
    width = 0.8 / len(names)
    for at, cast in enumerate(MAIN_CASTS):
        for i, name in enumerate(names):
            speed = best_stores(figures[("variants", name, *cast, count)])
            left = at - 0.4 + i * width
            axes.bar(left, speed, width * 0.9, align="edge", color=COLORS[name], label=None if at else name)
        memcpy = memcpy_speed(figures, cast, count)
        axes.hlines(memcpy, at - 0.45, at + 0.45, color=INK, linewidth=2.5, zorder=3, label=None if at else "memcpy")
    axes.set_xticks(range(len(MAIN_CASTS)), [f"{start}\nto {end}" for start, end in MAIN_CASTS])
    axes.grid(visible=False, axis="x")


def measure(quick: bool) -> Report:
    effort = QUICK if quick else FULL
    figures = kernel_figures(effort)
    rows = kernel_rows(figures, effort)
    measured = [
        Row(f"{variant}, {start} -> {end}, {elements(count)} elements, {table_name}: {name}", speed, "GB/s")
        for (table_name, variant, start, end, count), runs in figures.items()
        for name, speed in runs.items()
    ]
    text = f"""\
One thread. GB/s count what is read and what is written.

{table_of(rows)}

![Speed of every kernel by instruction set, beside memcpy](kernels.svg)

{variants_table(figures)}

The faster of cached and streaming stores. memcpy moves as many bytes. The fastest variant by size, alone, with one reading of
its target, and into new memory each time:

{sizes_table(figures)}

Transposed squares:

{transposed_table(figures)}"""
    return Report("Kernels", [*rows, *measured], text, {"kernels": lambda: draw_kernels(figures)})


if __name__ == "__main__":
    run(__doc__, measure)
