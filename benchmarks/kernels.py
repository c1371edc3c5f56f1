"""The cast kernels beside memcpy, and the cast of a tensor beside Tensor.to.

What the kernels do on raw arrays is measured by kernels.cpp, which is built into build/bench for it.
"""

from __future__ import annotations

import functools
import json
import math
import subprocess
import sys
import timeit
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from bench import INK, Report, Row, converted, run, shortest, table, table_of, take_turns
from matplotlib.figure import Figure

from habana_mp import hmp

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from matplotlib.axes import Axes

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build" / "bench"
MAIN_CASTS = [("float32", "bfloat16"), ("bfloat16", "float32"), ("float32", "float16"), ("float16", "float32")]
COLORS = {"scalar": "#a877d6", "avx2": "#d9822b", "avx512": "#3f8fd8", "avx512_bf16": "#2fa866", "neon": "#2fa866"}

# By (table, variant, from, to, elements), then by run: GB/s.
Key = tuple[str, str, str, str, int]
Figures = dict[Key, dict[str, float]]


@dataclass(frozen=True)
class Effort:
    log2_elements: int
    kernel_seconds: float
    rounds: int
    seconds: float
    log2_sizes: tuple[int, ...]


FULL = Effort(26, kernel_seconds=0.1, rounds=5, seconds=3, log2_sizes=(6, 10, 14, 17, 20, 24))
QUICK = Effort(18, kernel_seconds=0, rounds=1, seconds=0, log2_sizes=(6, 17))


def elements(count: int) -> str:
    for factor, unit in ((1 << 20, " Mi"), (1 << 10, " Ki")):
        if count >= factor:
            return f"{count // factor}{unit}"
    return str(count)


# The kernels


def kernel_figures(effort: Effort) -> Figures:
    tools = Path(sys.executable).parent
    configure = f"-G Ninja -DCMAKE_MAKE_PROGRAM={tools / 'ninja'} -DHABANA_MP_CORE_ONLY=ON -DHABANA_MP_BENCHMARKS=ON"
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
        rows.append(Row(what, best_stores(runs) / runs["memcpy"], "x", 0.9, beside, at_least=True))
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


# The cast of a tensor


@dataclass(frozen=True)
class Way:
    scope: Callable[[], AbstractContextManager[Any]]
    call: Callable[[torch.Tensor, torch.dtype], Any]


POSITIVE_LOWER = hmp.Policy.from_ops(lower=["positive"], rest="inputs")


def through_an_op() -> AbstractContextManager[Any]:
    """Tensor.positive returns its input: with it in a list, the cast is all that the call does."""
    return converted(POSITIVE_LOWER)


def ways(count: int) -> dict[str, Way]:
    out = torch.empty(count, dtype=torch.bfloat16)
    return {
        "Tensor.to": Way(nullcontext, lambda x, dtype: x.to(dtype)),
        "patched op": Way(through_an_op, lambda x, _: x.positive()),
        "hmp.cast": Way(nullcontext, hmp.cast),
        "Tensor.copy_": Way(nullcontext, lambda x, _: out.copy_(x)),
        "hmp.cast, out=": Way(nullcontext, lambda x, dtype: hmp.cast(x, dtype, out=out)),
    }


def cast_seconds(count: int, effort: Effort) -> dict[str, float]:
    """Of float32 to bfloat16, by each way."""
    x = torch.randn(count)
    calls = max(1, min(1000, (1 << 20) // count))

    def visit(way: Way) -> float:
        with way.scope():
            timer = timeit.Timer("call(x, dtype)", globals={"call": way.call, "x": x, "dtype": torch.bfloat16})
            timer.timeit(calls)
            return shortest(timer, 5, calls)

    return take_turns(
        {name: functools.partial(visit, way) for name, way in ways(count).items()}, effort.rounds, effort.seconds
    )


# By way, then by (threads, elements).
Times = dict[str, dict[tuple[int, int], float]]


def cast_times(effort: Effort) -> Times:
    times: Times = {}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for log2 in effort.log2_sizes:
            for way, seconds in cast_seconds(1 << log2, effort).items():
                times.setdefault(way, {})[threads, 1 << log2] = seconds
    return times


def cast_rows(times: Times) -> list[Row]:
    goals = {(1, 1 << 17): 2.5, (1, 1 << 24): 3.0, (2, 1 << 24): 3.0}
    rows = []
    for way, other in (("patched op", "Tensor.to"), ("hmp.cast", "Tensor.to"), ("hmp.cast, out=", "Tensor.copy_")):
        for (threads, count), seconds in times[way].items():
            what = f"float32 -> bfloat16, {elements(count)} elements, {threads} thread{'s' * (threads > 1)}: {other} over {way}"
            theirs = times[other][threads, count]
            goal = goals.get((threads, count)) if other == "Tensor.to" else None
            beside = f"{theirs * 1e6:.3g} us against {seconds * 1e6:.3g}"
            rows.append(Row(what, theirs / seconds, "x", goal, beside, at_least=True))
    return rows


def draw_casts(times: Times) -> Figure:
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    colors = {"patched op": "#d9822b", "hmp.cast": "#2fa866"}
    for axes, threads in zip(panels, (1, 2), strict=True):
        counts = [count for one, count in times["Tensor.to"] if one == threads]
        for way, color in colors.items():
            speeds = [times["Tensor.to"][threads, count] / times[way][threads, count] for count in counts]
            axes.plot(counts, speeds, "o-", color=color, label=way)
        axes.axhline(1, color=INK, linewidth=1.5, linestyle="--")
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, map(elements, counts))
        axes.minorticks_off()
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_title(f"{threads} thread{'s' * (threads > 1)}")
        axes.set_xlabel("elements")
    panels[0].set_ylabel("times as fast as Tensor.to")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def measure(quick: bool) -> Report:
    effort = QUICK if quick else FULL
    figures, times = kernel_figures(effort), cast_times(effort)
    rows, casts = kernel_rows(figures, effort), cast_rows(times)
    measured = [
        Row(f"{variant}, {start} -> {end}, {elements(count)} elements, {table_name}: {name}", speed, "GB/s")
        for (table_name, variant, start, end, count), runs in figures.items()
        for name, speed in runs.items()
    ]
    text = f"""\
One thread, except where the threads are named. GB/s count what is read and what is written.

{table_of(rows)}

![Speed of every kernel by instruction set, beside memcpy](kernels.svg)

{variants_table(figures)}

The faster of cached and streaming stores. memcpy moves as many bytes. The fastest variant by size, alone, with one reading of
its target, and into new memory each time:

{sizes_table(figures)}

Transposed squares:

{transposed_table(figures)}

### A tensor

Into a new tensor each time, as `Tensor.to` does; the patched op does nothing but cast (`positive` in the lower list). With `out=`,
beside `Tensor.copy_`.

![Speed of a cast of a tensor, by its size, beside Tensor.to](casts.svg)

{table_of(casts)}"""
    pictures = {"kernels": lambda: draw_kernels(figures), "casts": lambda: draw_casts(times)}
    return Report("Kernels", [*rows, *casts, *measured], text, pictures)


if __name__ == "__main__":
    run(__doc__, measure)
