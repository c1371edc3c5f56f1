"""Inference of whole models: float32, torch.autocast, held in bfloat16, and converted."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from harness.command import run
from harness.device import DEVICE, DEVICES, thread_counts
from harness.pages import Report
from harness.rows import Comparison, Ratio, Row, rows_of, table_of_comparisons
from subjects import model_zoo
from subjects.model_zoo import Model
from subjects.steps import infer, inference_of, named
from subjects.variants import AS_AUTOCAST, FLOATING, OURS, QUICK_TURNS, SECONDS, VARIANTS, WARM_UP, Turns, compare


@dataclass(frozen=True)
class Effort:
    models: list[Model]
    frozen: list[Model]
    batches: tuple[int, ...]
    wide_batch: int  # of the MLP alone: where it computes more than it reads
    threads: tuple[int, ...]
    turns: Turns
    frozen_turns: Turns


FULL = Effort(
    [
        *model_zoo.MODELS,
        model_zoo.UNFUSED_ENCODER,
        *model_zoo.LARGE_MODELS,
        *(model_zoo.GPU_MODELS if DEVICE == "cuda" else ()),
    ],
    [*model_zoo.MODELS, model_zoo.UNFUSED_ENCODER, model_zoo.SMALL_UNFUSED_ENCODER],
    batches=(1, 8),
    wide_batch=64,
    threads=(1, 2),
    turns=Turns(rounds=2, seconds=SECONDS, runs=2, visit_seconds=0.05),
    frozen_turns=Turns(rounds=2, seconds=2, runs=2, visit_seconds=0.05),
)
QUICK = Effort(
    [*model_zoo.TINY_MODELS, model_zoo.TINY_UNFUSED_ENCODER, *model_zoo.TINY_LARGE_MODELS],
    [*model_zoo.TINY_MODELS, model_zoo.TINIEST_UNFUSED_ENCODER],
    batches=(1,),
    wide_batch=2,
    threads=(1,),
    turns=QUICK_TURNS,
    frozen_turns=QUICK_TURNS,
)

NAMES = list(VARIANTS if DEVICE == "cpu" else FLOATING)
RATIOS = [
    Ratio("hmp", "bf16"),
    Ratio("hmp.autocast", "bf16"),
    Ratio("hmp.autocast", "autocast"),
    *(Ratio(each, "hmp") for each in NAMES if each not in FLOATING),
    *(Ratio("autocast", name) for name in OURS),
]


def batches_of(effort: Effort, model: Model) -> tuple[int, ...]:
    if model in model_zoo.GPU_MODELS:
        return (model_zoo.GPU_BATCH,)
    return (*effort.batches, effort.wide_batch) if model.name.startswith("MLP") else effort.batches


def inference(
    effort: Effort, turns: Turns, model: Model, batch: int, names: list[str], *, frozen: bool = False
) -> dict[int, dict[str, float]]:
    """By number of threads, then by variant."""
    with torch.device(DEVICE):
        plain = model.make().eval().requires_grad_(not frozen)
    calls: dict[str, Callable[[], object]] = {}
    for name in names:
        variant = VARIANTS[name]
        calls[name] = functools.partial(infer, *inference_of(model, plain, batch, variant), variant)
    taken = {}
    for threads in thread_counts(effort.threads):
        torch.set_num_threads(threads)
        taken[threads] = compare(turns, calls)
    return taken


def inferences(effort: Effort) -> list[Comparison]:
    found = []
    for model in effort.models:
        for batch in batches_of(effort, model):
            taken = inference(effort, effort.turns, model, batch, NAMES)
            found += [Comparison(named(model, batch, threads), "ms", each, RATIOS) for threads, each in taken.items()]
    return found


def frozen_inferences(effort: Effort) -> list[Comparison]:
    batch = effort.batches[-1]
    return [
        Comparison(
            named(model, batch, threads),
            "ms",
            taken,
            [Ratio("hmp", "bf16")],
        )
        for model in effort.frozen
        for threads, taken in inference(effort, effort.frozen_turns, model, batch, ["bf16", "hmp"], frozen=True).items()
    ]


def most(comparisons: list[Comparison], name: str) -> Row:
    ratio = max(one.taken[name] / one.taken["bf16"] for one in comparisons)
    return Row(f"inference, the most of {len(comparisons)} comparisons: {name} over bf16", ratio, "x")


def measure(quick: bool) -> Report:
    effort = QUICK if quick else FULL
    torch.manual_seed(0)
    infer_all, frozen = inferences(effort), frozen_inferences(effort)
    in_8_bits = "; `weight_int8` and `int8` are `hmp` with linear layers and convolutions [in eight bits](int8.md)"
    in_8_bits = in_8_bits if DEVICE == "cpu" else ""
    text = f"""\
Random weights; sequences of {model_zoo.SEQUENCE}, images of 64 x 64 (CNN) and 224 x 224 (ViT, ResNet-50), {model_zoo.VOCABULARY} words. `bf16` is the
model held in bfloat16 (`Module.to`), `hmp` is `hmp.convert()`; `{AS_AUTOCAST}` casts by the lists of `torch.autocast` and so
does the same arithmetic; `hmp.autocast` is a region round forward{in_8_bits}. A round visits every variant: convert where it is one, {WARM_UP} calls, then timed ones, then revert. malloc keeps
the memory that is freed, because else calls wait for new pages by what ran before in the process.

Under `torch.inference_mode()`. "No fast path": torch runs its own `TransformerEncoderLayer` as one fused op, under
`torch.autocast` too; switched off, it computes as other attention layers do. "Channels last": weights and images lie so.

{table_of_comparisons(infer_all)}

The same with frozen weights (`requires_grad_(False)`):

{table_of_comparisons(frozen)}"""
    rows = [
        *rows_of({"inference": infer_all, "frozen": frozen}),
        *(most(infer_all, name) for name in ("hmp", "hmp.autocast")),
    ]
    return Report("Inference", rows, text)


if __name__ == "__main__":
    run(__doc__, measure, DEVICES)
