"""The cast of a tensor, by a patched op and by hmp.cast, beside Tensor.to and Tensor.copy_."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from harness.command import run
from harness.device import DEVICE, DEVICES, placed, thread_counts
from harness.pages import Report
from harness.pictures import INK
from harness.rows import Row, elements, table_of
from harness.timing import shortest, take_turns, timer
from matplotlib.figure import Figure
from subjects.variants import converted

from habana_mp import hmp

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Effort:
    rounds: int
    seconds: float
    log2_sizes: dict[int, tuple[int, ...]]  # by number of threads


FULL = Effort(5, 1.5, {1: (6, 10, 14, 17, 20, 24), 2: (6, 10, 14, 17, 18, 20, 21, 22, 23, 24, 26)})
QUICK = Effort(1, 0, {1: (6, 17), 2: (6, 17)})

COLORS = {"patched op": "#d9822b", "hmp.cast": "#2fa866"}


@dataclass(frozen=True)
class Way:
    scope: Callable[[], AbstractContextManager[Any]]
    call: Callable[[torch.Tensor, torch.dtype], Any]


@dataclass(frozen=True)
class Direction:
    start: torch.dtype
    end: torch.dtype
    policy: (
        hmp.Policy
    )  # casts what goes into Tensor.positive, which returns its input: the cast is all that the call does

    def __str__(self) -> str:
        return f"{self.start} -> {self.end}".replace("torch.", "")


DIRECTIONS = [
    Direction(torch.float32, torch.bfloat16, hmp.Policy.from_ops(lower=["positive"], rest="inputs")),
    Direction(torch.bfloat16, torch.float32, hmp.Policy.from_ops(lower=[], fp32=["positive"], rest="inputs")),
]


def ways(direction: Direction, count: int) -> dict[str, Way]:
    out = torch.empty(count, dtype=direction.end, device=DEVICE)
    return {
        "Tensor.to": Way(nullcontext, lambda x, dtype: x.to(dtype)),
        "patched op": Way(functools.partial(converted, direction.policy), lambda x, _: x.positive()),
        "hmp.cast": Way(nullcontext, hmp.cast),
        "Tensor.copy_": Way(nullcontext, lambda x, _: out.copy_(x)),
        "hmp.cast, out=": Way(nullcontext, lambda x, dtype: hmp.cast(x, dtype, out=out)),
    }


def cast_seconds(direction: Direction, count: int, effort: Effort) -> dict[str, float]:
    """By each way."""
    x = placed(torch.randn(count)).to(direction.start)
    calls = max(1, min(1000, (1 << 20) // count))

    def visit(way: Way) -> float:
        with way.scope():
            call = timer("call(x, dtype)", {"call": way.call, "x": x, "dtype": direction.end})
            call.timeit(calls)
            return shortest(call, 5, calls)

    visits = {name: functools.partial(visit, way) for name, way in ways(direction, count).items()}
    return take_turns(visits, effort.rounds, effort.seconds)


# By direction and way, then by (threads, elements).
Times = dict[tuple[str, str], dict[tuple[int, int], float]]


def cast_times(effort: Effort) -> Times:
    times: Times = {}
    for direction in DIRECTIONS:
        for threads in thread_counts(tuple(effort.log2_sizes)):
            torch.set_num_threads(threads)
            for log2 in effort.log2_sizes[threads]:
                for way, seconds in cast_seconds(direction, 1 << log2, effort).items():
                    times.setdefault((str(direction), way), {})[threads, 1 << log2] = seconds
    return times


def cast_rows(times: Times) -> list[Row]:
    rows = []
    for direction in map(str, DIRECTIONS):
        for way, other in (("patched op", "Tensor.to"), ("hmp.cast", "Tensor.to"), ("hmp.cast, out=", "Tensor.copy_")):
            for (threads, count), seconds in times[direction, way].items():
                end = f"{elements(count)} elements, {threads} thread{'s' * (threads > 1)}"
                theirs = times[direction, other][threads, count]
                beside = f"{theirs * 1e6:.3g} us against {seconds * 1e6:.3g}"
                rows.append(Row(f"{direction}, {end}: {other} over {way}", theirs / seconds, "x", beside))
    return rows


def draw_casts(times: Times) -> Figure:
    figure = Figure(figsize=(10, 7), layout="constrained")
    grid = figure.subplots(len(DIRECTIONS), 2, sharey=True)
    for panels, direction in zip(grid, map(str, DIRECTIONS), strict=True):
        for axes, threads in zip(panels, (1, 2), strict=True):
            draw_direction(axes, times, direction, threads)
        panels[0].set_ylabel("times as fast as Tensor.to")
    for axes in grid[-1]:
        axes.set_xlabel("elements")
    figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def draw_direction(axes: Axes, times: Times, direction: str, threads: int) -> None:
    theirs = {count: seconds for (one, count), seconds in times[direction, "Tensor.to"].items() if one == threads}
    for way, color in COLORS.items():
        speeds = [seconds / times[direction, way][threads, count] for count, seconds in theirs.items()]
        axes.plot([*theirs], speeds, "o-", color=color, label=way)
    axes.axhline(1, color=INK, linewidth=1.5, linestyle="--")
    axes.set_xscale("log", base=2)
    axes.set_xticks([*theirs], map(elements, theirs), rotation=90)
    axes.minorticks_off()
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_title(f"{direction}, {threads} thread{'s' * (threads > 1)}")


def measure(quick: bool) -> Report:
    times = cast_times(QUICK if quick else FULL)
    rows = cast_rows(times)
    on_cpu = DEVICE == "cpu"
    picture = "![Speed of a cast of a tensor, by its size, beside Tensor.to](casts.svg)\n\n" if on_cpu else ""
    text = f"""\
Into a new tensor each time, as `Tensor.to` does; the patched op does nothing but cast (`positive` in the list lower, or fp32). With `out=`,
beside `Tensor.copy_`.

{picture}{table_of(rows)}"""
    return Report("Casts", rows, text, {"casts": lambda: draw_casts(times)} if on_cpu else {})


if __name__ == "__main__":
    run(__doc__, measure, DEVICES)
