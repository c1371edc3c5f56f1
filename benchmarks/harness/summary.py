"""The lines and the short table that open docs/benchmarks.md: computed from rows, so that a new run changes them."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.rows import Row, table

if TYPE_CHECKING:
    from harness.results import Results

OURS, AUTOCAST, HELD = "hmp", "autocast", "bf16"  # names of variants
SAME = 0.03  # of a median: what is nearer to 1 is called the same


@dataclass(frozen=True)
class Subject:
    """The comparisons of a group whose name contains ``part``."""

    title: str
    group: str
    why: str = ""
    part: str = ""


LINES = [
    Subject(
        "Inference",
        "inference",
        "habana_mp casts a weight once and keeps the copy until the weight changes. `torch.autocast` casts it at every call of the model. In a model held in bfloat16, each matrix product rearranges its weight.",
    ),
    Subject(
        "Decoding",
        "decoding",
        "A step reads every weight for a few rows. `torch.autocast` casts weights in each step under `inference_mode`, and once in a region under `no_grad`: the tables name which it was. The copies have the memory layout that the matrix product needs, and a kernel of the package reads them once.",
    ),
    Subject(
        "Compiled inference",
        "compiled inference",
        "The graph uses the same copies and casts no weight.",
    ),
    Subject(
        "A training step",
        "training step",
        "habana_mp and `torch.autocast` cast each weight once a step, compute the same products and update float32 weights. They differ in the ops that run in bfloat16, and in the time of a cast.",
    ),
]
OVERHEAD = "mm(8x8), nothing to cast, only mm patched: "
TABLE = [
    Subject("Inference, batch 1", "inference", part=", batch 1,"),
    Subject("Inference, batch 8", "inference", part=", batch 8,"),
    Subject("Decoding, batch 1", "decoding", part=", batch 1,"),
    Subject("Decoding, batch 8", "decoding", part=", batch 8,"),
    Subject("Compiled inference", "compiled inference"),
    Subject("Training step", "training step"),
    Subject("Compiled training step", "compiled training"),
    Subject("Peak memory of a training step", "peak memory"),
    Subject("Memory of inference", "memory of inference"),
]


def lines(results: Results) -> list[str]:
    """Six: what is faster or slower, by how much, than what, and why."""
    rows = _rows(results)
    return [*(_line(subject, rows) for subject in LINES), _eight_bits(rows), _overhead(rows)]


def short_table(results: Results) -> str:
    rows = _rows(results)
    found = []
    for subject in TABLE:
        ratios = [_ratios(rows, subject, bottom) for bottom in (AUTOCAST, HELD)]
        if any(ratios):
            found.append(
                [subject.title, *(_spread(each) if each else "" for each in ratios), str(max(map(len, ratios)))]
            )
    return table(["", "relative to `torch.autocast`", "relative to the model held in bfloat16", "comparisons"], found)


def _rows(results: Results) -> list[Row]:
    return [row for section in results.values() for row in section.rows]


def _ratios(rows: list[Row], subject: Subject, bottom: str) -> list[float]:
    """Of every comparison that has both variants."""
    taken = {
        row.what: row.measured for row in rows if row.what.startswith(f"{subject.group}, ") and subject.part in row.what
    }
    ends = {what.removesuffix(f": {OURS}") for what in taken if what.endswith(f": {OURS}")}
    return [
        taken[f"{what}: {OURS}"] / taken[f"{what}: {bottom}"] for what in sorted(ends) if f"{what}: {bottom}" in taken
    ]


def _spread(ratios: list[float]) -> str:
    return f"{_median(ratios)} ({_ends(ratios)})"


def _line(subject: Subject, rows: list[Row]) -> str:
    against = {
        "`torch.autocast`": _ratios(rows, subject, AUTOCAST),
        "the model held in bfloat16": _ratios(rows, subject, HELD),
    }
    clauses = [f"{_verdict(ratios)} {other} ({_range(ratios)})" for other, ratios in against.items() if ratios]
    if not clauses:
        return f"**{subject.title}** is not measured yet."
    return f"**{subject.title}** is {', and '.join(clauses)}. {subject.why}"


def _verdict(ratios: list[float]) -> str:
    median = statistics.median(ratios)
    if abs(median - 1) <= SAME:
        return "about as fast as"
    return "faster than" if median < 1 else "slower than"


def _range(ratios: list[float]) -> str:
    return f"{_median(ratios)} of its time, {_ends(ratios)} by model"


def _median(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f}"


def _ends(ratios: list[float]) -> str:
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def _eight_bits(rows: list[Row]) -> str:
    steps, products = (
        [row.measured for row in rows if row.what.startswith(group) and row.what.endswith(end)]
        for group, end in (("decoding, ", ": int8 / hmp"), ("linear ", ": hmp, int8 / hmp"))
    )
    if not steps or not products:
        return "**Eight bits** are not measured yet."
    return (
        f"**Eight bits**: with its linear layers in [`int8`](int8.md), a decoding step takes {_median(steps)} of its time in bfloat16 ({_ends(steps)} by model), "
        f"and a linear layer alone {_median(products)} ({_ends(products)} by the number of rows). A weight has half of the bytes, and an instruction multiplies twice as "
        "many numbers. [The error is larger](accuracy.md#inference-in-8-bits-on-trained-models)."
    )


def _overhead(rows: list[Row]) -> str:
    extra = {row.what.removeprefix(OVERHEAD): row.measured for row in rows if row.what.startswith(OVERHEAD)}
    if len(extra) < 3:
        return "**A patched op** is not measured yet."
    own, theirs, native = (extra[name] for name in ("extra", "extra of torch.autocast", "native call"))
    return (
        f"**A patched op** with nothing to cast takes {own:.0f} ns more than torch's own op, which takes {native:.0f} ns. Under `torch.autocast` the op takes {theirs:.0f} ns more than torch's own. "
        "A patched op is what [replaces torch's function](one-call.md) after `convert`. Its C++ code looks only at the dtypes."
    )
