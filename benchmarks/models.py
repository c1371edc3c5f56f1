"""Inference, training step and peak memory of whole models: float32, torch.autocast, held in bfloat16, and converted."""

from __future__ import annotations

import copy
import functools
import gc
import json
import os
import subprocess
import sys
import timeit
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import model_zoo
import torch
from bench import INK, Report, Row, autocast, converted, run, shortest, table, take_turns
from matplotlib.figure import Figure
from model_zoo import Model, forward

from habana_mp import hmp

Scope = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Variant:
    # Around the whole visit, around forward and loss, around the update.
    process: Scope = nullcontext
    forward: Scope = nullcontext
    update: Scope = nullcontext
    held: bool = False
    color: str = ""


# "hmp: torch-cpu" casts what torch.autocast casts.
VARIANTS = {
    "fp32": Variant(color="#a877d6"),
    "autocast": Variant(forward=autocast, color="#d9822b"),
    "bf16": Variant(held=True, color="#8a8f98"),
    "hmp": Variant(process=converted, update=hmp.disable_casts, color="#2fa866"),
    "hmp: torch-cpu": Variant(
        process=functools.partial(converted, "torch-cpu"), update=hmp.disable_casts, color="#3f8fd8"
    ),
    "hmp.autocast": Variant(forward=lambda: hmp.autocast("cpu"), color="#c94f7c"),
}
OURS = ("hmp", "hmp: torch-cpu")


@dataclass(frozen=True)
class Effort:
    models: list[Model]
    unfused: Model
    small_unfused: Model
    batches: tuple[int, ...]
    threads: tuple[int, ...]
    rounds: int
    seconds: float  # for the rounds of one comparison
    runs: int
    visit_seconds: float


FULL = Effort(
    model_zoo.MODELS,
    model_zoo.UNFUSED_ENCODER,
    model_zoo.SMALL_UNFUSED_ENCODER,
    batches=(1, 8),
    threads=(1, 2),
    rounds=2,
    seconds=6,
    runs=2,
    visit_seconds=0.05,
)
QUICK = Effort(
    model_zoo.TINY_MODELS,
    model_zoo.TINY_UNFUSED_ENCODER,
    model_zoo.TINIEST_UNFUSED_ENCODER,
    batches=(1,),
    threads=(1,),
    rounds=1,
    seconds=0,
    runs=1,
    visit_seconds=0,
)
WARM_UP = 2  # calls of every visit: the first fills what a variant keeps, the second finds it


@dataclass(frozen=True)
class Ratio:
    top: str
    bottom: str
    goal: float | None = None
    at_least: bool = False


@dataclass(frozen=True)
class Comparison:
    """What the variants take for one thing, and the ratios that say how they stand."""

    what: str
    unit: str
    taken: dict[str, float]
    ratios: list[Ratio]

    def ratio_rows(self) -> list[Row]:
        return [
            Row(
                f"{self.what}: {ratio.top} / {ratio.bottom}",
                self.taken[ratio.top] / self.taken[ratio.bottom],
                "x",
                ratio.goal,
                at_least=ratio.at_least,
            )
            for ratio in self.ratios
        ]

    def rows(self) -> list[Row]:
        return [
            *self.ratio_rows(),
            *(Row(f"{self.what}: {name}", value, self.unit) for name, value in self.taken.items()),
        ]


def table_of(comparisons: list[Comparison]) -> str:
    first = comparisons[0]
    header = [
        *(f"{name}, {first.unit}" for name in first.taken),
        *(f"{one.top} / {one.bottom}" for one in first.ratios),
    ]
    lines = [
        [
            one.what,
            *(f"{value:.3g}" if value < 1000 else f"{value:.0f}" for value in one.taken.values()),
            *(f"{row.measured:.2f}" + (f", {row.goal_text()}" if row.goal else "") for row in one.ratio_rows()),
        ]
        for one in comparisons
    ]
    return table(["", *header], lines)


def named(model: Model, batch: int, threads: int) -> str:
    return f"{model.name}, batch {batch}, {threads} thread{'s' * (threads > 1)}"


def held(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor


def compare(effort: Effort, calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Milliseconds of a call, by variant."""

    def visit(name: str) -> float:
        with VARIANTS[name].process():
            timer = timeit.Timer(calls[name])
            timer.timeit(WARM_UP)
            return shortest(timer, effort.runs, seconds=effort.visit_seconds) * 1e3

    return take_turns({name: functools.partial(visit, name) for name in calls}, effort.rounds, effort.seconds)


# Inference


def infer(model: torch.nn.Module, x: torch.Tensor, variant: Variant) -> None:
    with torch.inference_mode(), variant.forward():
        forward(model, x)


def inference(
    effort: Effort, model: Model, batch: int, names: list[str], *, frozen: bool = False
) -> dict[int, dict[str, float]]:
    """By number of threads, then by variant."""
    plain = model.make().eval().requires_grad_(not frozen)
    in_bf16 = copy.deepcopy(plain).to(torch.bfloat16)
    x, _ = model.example(batch)
    calls: dict[str, Callable[[], object]] = {}
    for name in names:
        variant = VARIANTS[name]
        subject = (in_bf16, held(x)) if variant.held else (plain, x)
        calls[name] = functools.partial(infer, *subject, variant)
    taken = {}
    for threads in effort.threads:
        torch.set_num_threads(threads)
        taken[threads] = compare(effort, calls)
    return taken


def inferences(effort: Effort) -> list[Comparison]:
    return [
        Comparison(
            named(model, batch, threads),
            "ms",
            taken,
            [
                Ratio("hmp", "bf16", 1.05),
                Ratio("hmp.autocast", "bf16", 1.05),
                Ratio("hmp.autocast", "autocast", 0.9),
                *(
                    Ratio("autocast", name, 10 if model is effort.unfused and batch == 8 else None, at_least=True)
                    for name in OURS
                ),
            ],
        )
        for model in [*effort.models, effort.unfused]
        for batch in effort.batches
        for threads, taken in inference(effort, model, batch, list(VARIANTS)).items()
    ]


def frozen_inferences(effort: Effort) -> list[Comparison]:
    return [
        Comparison(
            named(model, effort.batches[-1], threads),
            "ms",
            taken,
            [Ratio("hmp", "bf16", 1.0 if model in (effort.unfused, effort.small_unfused) else 1.05)],
        )
        for model in [*effort.models, effort.unfused, effort.small_unfused]
        for threads, taken in inference(effort, model, effort.batches[-1], ["bf16", "hmp"], frozen=True).items()
    ]


# Training


class Trainer:
    """A training step: forward, loss, backward, AdamW as torch runs it by default on CPU, gradients set to None."""

    def __init__(self, model: Model, batch: int, variant: Variant) -> None:
        torch.manual_seed(0)
        self.module = model.make().train()
        self.x, self.target = model.example(batch)
        if variant.held:
            self.module, self.x, self.target = self.module.to(torch.bfloat16), held(self.x), held(self.target)
        self.loss = model.loss
        self.variant = variant
        self.optimizer = torch.optim.AdamW(self.module.parameters())

    def step(self) -> None:
        with self.variant.forward():
            loss = self.loss(forward(self.module, self.x), self.target)
        loss.backward()
        with self.variant.update():
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def trainings(effort: Effort) -> list[Comparison]:
    batch = effort.batches[-1]
    found = []
    for model in effort.models:
        mlp = model.name.startswith("MLP")
        steps: dict[str, Callable[[], object]] = {
            name: Trainer(model, batch, variant).step for name, variant in VARIANTS.items()
        }
        ratios = [
            *(Ratio(name, "autocast", 0.85 if mlp else 1.0) for name in OURS),
            Ratio("hmp.autocast", "autocast", 1.0),
            Ratio("hmp", "bf16", 1.35 if mlp else 1.1),
        ]
        for threads in effort.threads:
            torch.set_num_threads(threads)
            found.append(Comparison(named(model, batch, threads), "ms", compare(effort, steps), ratios))
    return found


# Memory

# glibc maps each block of this size by itself and gives it back when it is freed, so that resident memory is what is alive.
MAP_EVERY_TENSOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}


def resident_mib(which: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(which)) / 1024


def peak_mib(model: Model, batch: int, variant: Variant) -> float:
    """The most that a step has alive at once (weights, what the optimizer and the variant keep, activations, gradients), above
    what is left when all of it is gone.
    """
    with variant.process():
        trainer = Trainer(model, batch, variant)
        for _ in range(WARM_UP):
            trainer.step()
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again
        trainer.step()
        peak = resident_mib("VmHWM")
    del trainer
    gc.collect()
    return peak - resident_mib("VmRSS")


def print_peaks(quick: str) -> None:
    """A line of peaks for each variant, from a process that has run nothing before."""
    effort = QUICK if int(quick) else FULL
    torch.set_num_threads(1)
    for model in effort.models:
        model.make()  # imports what all processes need
    for variant in VARIANTS.values():
        if os.fork() == 0:
            # The first one touches code that then stays: not counted.
            models = [effort.models[0], *effort.models]
            peaks = [peak_mib(model, effort.batches[-1], variant) for model in models]
            print(json.dumps(peaks[1:]), flush=True)
            os._exit(0)
        if os.wait()[1] != 0:
            sys.exit(1)


def memory(effort: Effort) -> list[Comparison]:
    done = subprocess.run(
        [sys.executable, "-c", "import sys, models; models.print_peaks(sys.argv[1])", str(int(effort is QUICK))],
        cwd=Path(__file__).parent,
        env={**os.environ, **MAP_EVERY_TENSOR},
        stdout=subprocess.PIPE,
        check=True,
    )
    peaks = dict(zip(VARIANTS, map(json.loads, done.stdout.splitlines()), strict=True))
    return [
        Comparison(
            f"{model.name}, batch {effort.batches[-1]}",
            "MiB",
            {name: peaks[name][i] for name in VARIANTS},
            [*(Ratio(name, "autocast", 1.0) for name in OURS), Ratio("hmp", "bf16")],
        )
        for i, model in enumerate(effort.models)
    ]


# Pictures


def draw(panels: dict[str, list[Comparison]], beside: str, label: str) -> Figure:
    """A dot for every variant, as a multiple of the variant that the others stand beside."""
    names = [one.what.split(", batch")[0] for one in next(iter(panels.values()))]
    columns = 2 if len(panels) % 2 == 0 else len(panels)
    rows = len(panels) // columns
    figure = Figure(figsize=(10, 0.46 * len(names) * rows + 1.2), layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axes, (title, comparisons) in zip(grid.flat, panels.items(), strict=True):
        for i, (name, variant) in enumerate(VARIANTS.items()):
            ratios = [one.taken[name] / one.taken[beside] for one in comparisons]
            heights = [at + 0.16 * (i - 2) for at in range(len(ratios))]
            axes.plot(ratios, heights, "o", markersize=6, color=variant.color, label=name)
        for at in range(0, len(names), 2):
            axes.axhspan(at - 0.5, at + 0.5, color=INK, alpha=0.1, linewidth=0)
        axes.grid(visible=False, axis="y")
        axes.axvline(1, color=INK, linewidth=1.5, zorder=0)
        axes.set_title(title)
        axes.set_xscale("log", base=2)
        low, high = axes.get_xlim()
        axes.set_xlim(min(low, 0.49), max(high, 2.05))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_yticks(range(len(names)), [name.replace(", ", ",\n") for name in names])
        axes.set_ylim(len(names) - 0.5, -0.5)
    figure.supxlabel(label, fontsize="medium")
    figure.legend(*grid.flat[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(VARIANTS))
    return figure


def by_end(comparisons: list[Comparison]) -> dict[str, list[Comparison]]:
    """Those of every model, by batch and threads."""
    found: dict[str, list[Comparison]] = {}
    for one in comparisons:
        found.setdefault("batch " + one.what.split(", batch ")[1], []).append(one)
    return found


def measure(quick: bool) -> Report:
    effort = QUICK if quick else FULL
    torch.manual_seed(0)
    infer_all, frozen, train_all, peaks = (
        inferences(effort),
        frozen_inferences(effort),
        trainings(effort),
        memory(effort),
    )
    text = f"""\
Random weights; sequences of {model_zoo.SEQUENCE}, images of 64 x 64 (CNN) and 224 x 224 (ViT), {model_zoo.VOCABULARY} words. `bf16` is the
model held in bfloat16 (`Module.to`), `hmp` is `hmp.convert()`; `hmp: torch-cpu` casts by the lists of `torch.autocast` and so
does the same arithmetic, and so does `hmp.autocast`, a region round forward and loss. A round visits every variant: convert where it is one, {WARM_UP} calls, then timed ones, then revert.

### Inference

Under `torch.inference_mode()`. "No fast path": torch runs its own `TransformerEncoderLayer` as one fused op, under
`torch.autocast` too; switched off, it computes as other attention layers do.

![Time of inference by model and variant, as a multiple of the model held in bfloat16](inference.svg)

{table_of(infer_all)}

The same with frozen weights (`requires_grad_(False)`):

{table_of(frozen)}

### Training step

Forward, loss, backward, `AdamW` (its defaults, under `hmp.disable_casts()`), `zero_grad(set_to_none=True)`.

![Time of a training step and its peak memory by model and variant, as a multiple of torch.autocast](training.svg)

{table_of(train_all)}

### Peak memory of a training step

All that is alive at once, weights and optimizer included, one thread. A process for each variant reads the peak of its resident
memory (`VmHWM`, set back before the step), less what is resident when model and optimizer are gone; `malloc` is told to map
every block of 64 KiB and more by itself, so that freed memory is resident no longer.

{table_of(peaks)}"""
    pictures = {
        "inference": lambda: draw(by_end(infer_all), "bf16", "time, as a multiple of the model held in bfloat16"),
        "training": lambda: draw(
            {**by_end(train_all), "peak memory": peaks}, "autocast", "as a multiple of torch.autocast"
        ),
    }
    groups = {"inference": infer_all, "frozen": frozen, "training step": train_all, "peak memory": peaks}
    rows = [
        Row(f"{group}, {row.what}", row.measured, row.unit, row.goal, row.beside, row.at_least)
        for group, comparisons in groups.items()
        for one in comparisons
        for row in one.rows()
    ]
    return Report("Models", rows, text, pictures)


if __name__ == "__main__":
    run(__doc__, measure)
