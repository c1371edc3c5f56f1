"""What a recording costs a training step, how large its file is, and how long two of them take to compare."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import torch
from harness.rows import Row
from harness.timing import clock, take_turns
from subjects.model_zoo import gpt2
from subjects.steps import Trainer
from subjects.variants import VARIANTS, WARM_UP

from habana_mp import hmp

BATCH = 4


def recordings(quick: bool) -> list[Row]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            if quick:
                return [*cost(1, 64, 2, Path(folder)), *comparison(1, 64, 200, Path(folder))]
            return [
                *cost(4, 256, 12, Path(folder)),
                *cost(4, 128, 24, Path(folder)),
                *comparison(4, 256, 5000, Path(folder)),
            ]
    finally:
        torch.set_num_threads(threads)


def cost(layers: int, width: int, rounds: int, folder: Path) -> list[Row]:
    """Of a step with the block round it: from its beginning until the file is written."""
    model = gpt2(layers, width)
    trainer = Trainer(model, BATCH, VARIANTS["fp32"])
    file = folder / "step.rec"

    def visit(block: contextlib.AbstractContextManager[object]) -> float:
        start = clock()
        with block:
            trainer.step()
        return clock() - start

    visits = {
        "plain": lambda: visit(contextlib.nullcontext()),
        "recorded": lambda: visit(hmp.record(file)),
    }
    take_turns(visits, WARM_UP)
    best = take_turns(visits, rounds)
    what = f"a training step of {model.name}, batch {BATCH}, 1 thread"
    beside = f"step {best['plain'] * 1e3:.0f} ms"
    return [
        Row(f"{what}: recorded over plain", best["recorded"] / best["plain"], "x", beside),
        Row(f"{what}: file of the recording", file.stat().st_size / 1e6, "MB"),
    ]


def comparison(layers: int, width: int, least: int, folder: Path) -> list[Row]:
    """Of two files with so many calls or more, whose numbers differ."""
    trainer = Trainer(gpt2(layers, width), BATCH, VARIANTS["fp32"])
    first, second = folder / "first.rec", folder / "second.rec"
    trainer.step()  # the first one also makes the state of the optimizer
    with hmp.record(first):
        trainer.step()
    steps = -(-least // hmp.compare(first, first).calls)
    for file in (first, second):
        with hmp.record(file):
            for _ in range(steps):
                trainer.step()

    def visit() -> float:
        start = clock()
        found = hmp.compare(first, second)
        assert found.calls >= least
        assert not found.same
        return clock() - start

    what = f"two recordings of {least:,} calls or more"
    taken = take_turns({"compared": visit}, 3)["compared"]
    return [
        Row(f"{what}: loaded and compared", taken, "s"),
        Row(f"{what}: larger file", max(file.stat().st_size for file in (first, second)) / 1e6, "MB"),
    ]
