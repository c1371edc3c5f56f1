"""The pictures of whole models show every point that was measured."""

import math
from itertools import pairwise
from pathlib import Path

import casts
import kernels
import matplotlib as mpl
import pytest
from harness import pictures, results
from harness.rows import Row

ROOT = Path(__file__).parent.parent.parent
VARIANTS = tuple(pictures.COLORS)


def drawn(found):
    """Every picture of the results as it is saved: the figure, after its layout."""
    with mpl.rc_context(pictures.STYLE):
        figures = {name: draw() for name, draw in pictures.of_results(found).items()}
        for figure in figures.values():
            figure.draw_without_rendering()
    return figures


def points(axes):
    return [
        point for line in axes.lines if line.get_linestyle() == "None" for point in zip(*line.get_data(), strict=True)
    ]


def texts(figure):
    """The boxes of the labels at each axis, and of the entries of the legend."""
    groups = [axis.get_ticklabels() for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]
    groups += [legend.get_texts() for legend in figure.legends]
    return [[text.get_window_extent() for text in group if text.get_visible() and text.get_text()] for group in groups]


WIDE = {
    "Inference": results.Section(
        "a machine",
        [
            Row(f"inference, {model}, batch {batch}, {threads}: {variant}", scale ** VARIANTS.index(variant), "ms")
            for model, scale in {"one": 0.3, "another with a long name": 3, "third": 1.01}.items()
            for batch in (1, 8)
            for threads in ("1 thread", "2 threads")
            for variant in VARIANTS
        ],
    ),
    "Training": results.Section(
        "a machine",
        [Row(f"training step, one, batch 8, 1 thread: {variant}", 5 + i, "ms") for i, variant in enumerate(VARIANTS)],
    ),
    "Memory": results.Section(
        "a machine",
        [
            *(Row(f"peak memory, one, batch 8: {variant}", 50 - i, "MiB") for i, variant in enumerate(VARIANTS)),
            Row("peak memory, one, batch 8: hmp / autocast", 1, "x"),
        ],
    ),
}


@pytest.mark.parametrize("found", [WIDE, results.load(ROOT / "benchmarks" / "results.json")], ids=["wide", "measured"])
def test_every_point_lies_inside_the_axes(found):
    figures = drawn(found)
    assert sorted(figures) == ["inference", "training"]
    groups = {"inference": ("inference, ",), "training": ("training step, ", "peak memory, ")}
    for name, figure in figures.items():
        measured = [
            row
            for each in found.values()
            for row in each.rows
            if row.what.startswith(groups[name]) and row.what.partition(": ")[2] in VARIANTS
        ]
        shown = 0
        for axes in figure.axes:
            (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
            for x, y in points(axes):
                assert left < x < right
                assert top < y < bottom
                shown += 1
        assert shown == len(measured) > 0


@pytest.mark.parametrize("found", [WIDE, results.load(ROOT / "benchmarks" / "results.json")], ids=["wide", "measured"])
def test_labels_do_not_overlap(found):
    for figure in drawn(found).values():
        for boxes in texts(figure):
            assert [(a, b) for i, a in enumerate(boxes) for b in boxes[:i] if a.overlaps(b)] == []


def test_dots_of_one_subject_have_rows_of_their_own():
    (axes, _) = drawn(WIDE)["inference"].axes
    heights = sorted(y for _, y in points(axes))
    assert min(b - a for a, b in pairwise(heights)) > 0.1
    assert {math.floor(y + 0.5) for y in heights} == set(range(6))


def cast_times():
    """Of every size that is measured: as fast as Tensor.to, a hundred times as fast, and a tenth."""
    sizes = [(threads, 1 << log2) for threads, found in casts.FULL.log2_sizes.items() for log2 in found]
    scales = {"Tensor.to": 1.0, "patched op": 0.01, "hmp.cast": 10.0}
    return {
        (str(direction), way): {size: scale * size[1] for size in sizes}
        for direction in casts.DIRECTIONS
        for way, scale in scales.items()
    }


def kernel_figures():
    """By instruction set, GB/s; the slowest and the fastest are far apart."""
    speeds = {"scalar": 2.0, "avx2": 30.0, "avx512": 100.0, "avx512_bf16": 400.0}
    return {
        ("variants", name, start, end, count): {"cached": speed, "streaming": speed / 2, "memcpy": 20.0}
        for name, speed in speeds.items()
        for start, end in kernels.MAIN_CASTS
        for count in (1 << 17, 1 << 26)
    }


@pytest.mark.parametrize(
    "draw",
    [lambda: casts.draw_casts(cast_times()), lambda: kernels.draw_kernels(kernel_figures())],
    ids=["casts", "kernels"],
)
def test_pictures_of_casts(draw):
    with mpl.rc_context(pictures.STYLE):
        figure = draw()
        figure.draw_without_rendering()
    for boxes in texts(figure):
        assert [(a, b) for i, a in enumerate(boxes) for b in boxes[:i] if a.overlaps(b)] == []
    for axes in figure.axes:
        low, high = axes.get_ylim()
        heights = [y for line in axes.lines for y in line.get_ydata()]
        heights += [bar.get_height() for bar in axes.patches]
        assert low < min(heights) < max(heights) < high


def test_nothing_is_drawn_of_nothing():
    assert pictures.of_results({"Values": results.Section("a machine", [Row("a", 1, "")])}) == {}
