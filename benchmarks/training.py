"""A training step of whole models: float32, torch.autocast, held in bfloat16, and converted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from harness.command import run
from harness.device import DEVICE, DEVICES, thread_counts
from harness.pages import Report
from harness.rows import Comparison, Ratio, rows_of, table_of_comparisons
from subjects import model_zoo
from subjects.model_zoo import Model
from subjects.steps import Trainer, named
from subjects.variants import FLOATING, OURS, QUICK_TURNS, SECONDS, Turns, compare


@dataclass(frozen=True)
class Effort:
    models: list[Model]
    batch: int
    threads: tuple[int, ...]
    turns: Turns


FULL = Effort(
    model_zoo.MODELS if DEVICE == "cpu" else [*model_zoo.MODELS, *model_zoo.GPU_MODELS],
    8,
    (1, 2),
    Turns(rounds=5 if DEVICE == "cpu" else 2, seconds=SECONDS, runs=2, visit_seconds=0.05),
)
QUICK = Effort(model_zoo.TINY_MODELS, 1, (1,), QUICK_TURNS)


def trainings(effort: Effort) -> list[Comparison]:
    found = []
    for model in effort.models:
        batch = model_zoo.GPU_BATCH if model in model_zoo.GPU_MODELS else effort.batch
        steps: dict[str, Callable[[], object]] = {
            name: Trainer(model, batch, variant).step for name, variant in FLOATING.items()
        }
        ratios = [*(Ratio(name, "autocast") for name in (*OURS, "hmp.autocast")), Ratio("hmp", "bf16")]
        for threads in thread_counts(effort.threads):
            torch.set_num_threads(threads)
            taken = compare(effort.turns, steps)
            found.append(Comparison(named(model, batch, threads), "ms", taken, ratios))
    return found


def measure(quick: bool) -> Report:
    train_all = trainings(QUICK if quick else FULL)
    text = f"""\
The models and variants of [Inference](#inference). Forward, loss, backward, `AdamW` (its defaults, under `hmp.disable_casts()`),
`zero_grad(set_to_none=True)`; the region of `hmp.autocast` is round forward and loss. malloc keeps the memory that is freed.

{table_of_comparisons(train_all)}"""
    return Report("Training", rows_of({"training step": train_all}), text)


if __name__ == "__main__":
    run(__doc__, measure, DEVICES)
