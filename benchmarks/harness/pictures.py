"""How pictures look, and those of whole models, which are drawn from the results."""

from __future__ import annotations

import functools
from fractions import Fraction
from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.results import Results
    from harness.rows import Row
    from matplotlib.axes import Axes

# What a picture has on PNG. An SVG has the colour of the scheme in its place: nothing is drawn behind a picture. A page with a switch for
# light and dark sets color-scheme, which the pictures on it follow.
INK = "#7b838c"
SCHEMES = "svg{color: #59616b} @media (prefers-color-scheme: dark){svg{color: #aab2bd}}"
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
COLORS = {
    "fp32": "#a877d6",
    "autocast": "#d9822b",
    "bf16": "#8a8f98",
    "hmp": "#2fa866",
    "hmp: torch-cpu": "#3f8fd8",
    "hmp.autocast": "#c94f7c",
}

# What the variants take, by panel, then by what is measured, then by variant.
Panels = dict[str, dict[str, dict[str, float]]]


def save(draw: Callable[[], Figure], path: Path) -> None:
    is_svg = path.suffix == ".svg"
    with mpl.rc_context(STYLE):
        draw().savefig(path, metadata={"Date": None} if is_svg else None)
    if is_svg:
        path.write_text(with_schemes(path.read_text()))


def with_schemes(svg: str) -> str:
    """matplotlib writes no rules for schemes: the ink of its SVG becomes the colour that such a rule sets."""
    return svg.replace(INK, "currentColor").replace("</style>", f"{SCHEMES}</style>", 1)


def of_results(results: Results) -> dict[str, Callable[[], Figure]]:
    """What draws them, by name. A picture of which nothing is measured is left out."""
    rows = [row for section in results.values() for row in section.rows]
    wanted = {
        "inference": (by_threads(rows, "inference"), "bf16", "time, as a multiple of the model held in bfloat16"),
        "training": (
            {**by_threads(rows, "training step"), **by_threads(rows, "peak memory")},
            "autocast",
            "as a multiple of torch.autocast",
        ),
    }
    return {name: functools.partial(draw, *each) for name, each in wanted.items() if each[0]}


def by_threads(rows: list[Row], group: str) -> Panels:
    """Those of every model and batch, by the number of threads; figures of one thread alone are under the name of their group."""
    panels: Panels = {}
    for row in rows:
        what, _, name = row.what.removeprefix(f"{group}, ").partition(": ")
        if not row.what.startswith(f"{group}, ") or name not in COLORS:
            continue
        subject, _, threads = what.rpartition(", ")
        if not threads.endswith(("thread", "threads")):
            subject, threads = what, group
        panels.setdefault(threads, {}).setdefault(subject, {})[name] = row.measured
    return panels


def draw(panels: Panels, beside: str, label: str) -> Figure:
    """A dot for every variant, as a multiple of the variant that the others stand beside."""
    subjects = list(dict.fromkeys(subject for found in panels.values() for subject in found))
    figure = Figure(figsize=(10, 0.36 * len(subjects) + 1.4), layout="constrained")
    (grid,) = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)
    shown: dict[str, None] = {}
    for axes, (title, found) in zip(grid, panels.items(), strict=True):
        ratios = {
            (subjects.index(subject), name): value / taken[beside]
            for subject, taken in found.items()
            for name, value in taken.items()
        }
        draw_dots(axes, ratios)
        shown |= dict.fromkeys(name for _, name in ratios)
        for at in range(0, len(subjects), 2):
            axes.axhspan(at - 0.5, at + 0.5, color=INK, alpha=0.1, linewidth=0)
        axes.grid(visible=False, axis="y")
        axes.axvline(1, color=INK, linewidth=1.5, zorder=0)
        axes.set_title(title)
        axes.set_yticks(range(len(subjects)), subjects)
        axes.set_ylim(len(subjects) - 0.5, -0.5)
    set_range(
        grid[0],
        [taken[name] / taken[beside] for found in panels.values() for taken in found.values() for name in taken],
    )
    figure.supxlabel(label, fontsize="medium")
    dots = [
        Line2D([], [], linestyle="", marker="o", color=COLORS[name], label=name) for name in COLORS if name in shown
    ]
    figure.legend(handles=dots, loc="outside upper center", ncols=len(dots))
    return figure


def draw_dots(axes: Axes, ratios: dict[tuple[int, str], float]) -> None:
    names = [name for name in COLORS if any(name == each for _, each in ratios)]
    step = 0.8 / len(COLORS)
    for i, name in enumerate(names):
        places = [at for at, each in ratios if each == name]
        heights = [at + step * (i - (len(names) - 1) / 2) for at in places]
        axes.plot([ratios[at, name] for at in places], heights, "o", markersize=5, color=COLORS[name])


def set_range(axes: Axes, ratios: list[float]) -> None:
    """From below the smallest to above the largest, with marks at powers of two; the axes of all panels are one."""
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(*ratios, 0.7) / 1.1, max(*ratios, 1.42) * 1.1)
    axes.xaxis.set_major_formatter(lambda mark, _: str(Fraction(mark)))
    axes.minorticks_off()
