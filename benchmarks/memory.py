"""Memory of whole models: the peak of a training step, and what inference keeps resident; a process for each variant."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from harness.command import run
from harness.pages import Report
from harness.rows import Comparison, Ratio, rows_of, table_of_comparisons
from subjects import model_zoo
from subjects.model_zoo import Model
from subjects.steps import Trainer, held, infer
from subjects.variants import FLOATING, OURS, VARIANTS, WARM_UP, Variant, converted

from habana_mp import hmp

# glibc maps each block of this size by itself and gives it back when it is freed, so that resident memory is what is alive.
MAP_EVERY_TENSOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
BOTH = "bf16 + float32 weights"
OFFLOADED = "hmp, offloaded"  # the float32 weights are in a file: hmp.cache.offload
OFFLOADED_INT8 = "int8, offloaded"
ALL_IN_8_BITS = hmp.Policy.load("hmp").with_edits(
    *(f"+{op}:int8" for op in ("linear", "addmm", "conv2d")), "+embedding:weight_int8"
)


def models_of(quick: bool) -> list[Model]:
    return [model_zoo.bert(1, 64), model_zoo.vit(1, 128)] if quick else model_zoo.MODELS


def batch_of(quick: bool) -> int:
    return 1 if quick else 8


def resident_mib(which: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(which)) / 1024


def peak_mib(variant: Variant, model: Model, batch: int) -> float:
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
    hmp.cache.clear()
    gc.collect()
    return peak - resident_mib("VmRSS")


def inferring_mib(variant: Variant, model: Model, batch: int, *, offload: bool = False) -> float:
    """What stays alive between calls (weights, and what the variant keeps of them), above what is left when all of it is gone."""
    with variant.process():
        module, (x, _) = model.make().eval(), model.example(batch)
        if variant.held:
            module, x = module.to(torch.bfloat16), held(x)
        if offload:
            hmp.cache.offload(module)
        for _ in range(WARM_UP + 1):
            infer(module, x, variant)
        gc.collect()
        resident = resident_mib("VmRSS")
    del module  # and not x: the caller has the input
    hmp.cache.clear()
    gc.collect()
    return resident - resident_mib("VmRSS")


# What is measured, and by variant how.
MEASURES: dict[str, dict[str, Callable[[Model, int], float]]] = {
    "peak memory": {name: partial(peak_mib, variant) for name, variant in FLOATING.items()},
    "memory of inference": {
        **{
            name: partial(inferring_mib, VARIANTS[name]) for name in ("fp32", "autocast", "bf16", "hmp", "hmp.autocast")
        },
        OFFLOADED: partial(inferring_mib, VARIANTS["hmp"], offload=True),
        OFFLOADED_INT8: partial(inferring_mib, Variant(process=lambda: converted(ALL_IN_8_BITS)), offload=True),
    },
}


def print_figures(quick: str) -> None:
    """A line of figures for each measure and variant, from a process that has run nothing before."""
    models, batch = models_of(bool(int(quick))), batch_of(bool(int(quick)))
    torch.set_num_threads(1)
    for model in models:
        model.make()  # imports what all processes need
    for variants in MEASURES.values():
        for mib in variants.values():
            if os.fork() == 0:
                # The first one touches code that then stays: not counted.
                figures = [mib(model, batch) for model in [models[0], *models]]
                print(json.dumps(figures[1:]), flush=True)
                os._exit(0)
            if os.wait()[1] != 0:
                sys.exit(1)


def all_figures(quick: bool) -> dict[str, dict[str, dict[str, float]]]:
    """MiB by measure, then by model, then by variant."""
    done = subprocess.run(
        [sys.executable, "-c", "import sys, memory; memory.print_figures(sys.argv[1])", str(int(quick))],
        cwd=Path(__file__).parent,
        env={**os.environ, **MAP_EVERY_TENSOR},
        stdout=subprocess.PIPE,
        check=True,
    )
    lines = map(json.loads, done.stdout.splitlines())
    found: dict[str, dict[str, dict[str, float]]] = {}
    for measure_name, variants in MEASURES.items():
        for name, figures in zip(variants, lines, strict=False):  # the lines go on with the next measure
            for model, mib in zip(models_of(quick), figures, strict=True):
                found.setdefault(measure_name, {}).setdefault(model.name, {})[name] = mib
    return found


def training_peaks(quick: bool, found: dict[str, dict[str, float]]) -> list[Comparison]:
    ratios = [*(Ratio(name, "autocast") for name in OURS), Ratio("hmp", "bf16")]
    return [Comparison(f"{name}, batch {batch_of(quick)}", "MiB", taken, ratios) for name, taken in found.items()]


def inferring(quick: bool, found: dict[str, dict[str, float]]) -> list[Comparison]:
    """A model that is converted needs its float32 weights, and besides them no more than one that is held in bfloat16. In a file, the
    float32 weights need no memory.
    """
    ratios = [
        Ratio("hmp", BOTH),
        Ratio("hmp.autocast", BOTH),
        Ratio(OFFLOADED, "bf16"),
        Ratio(OFFLOADED_INT8, "fp32"),
    ]
    return [
        Comparison(
            f"{model.name}, batch {batch_of(quick)}",
            "MiB",
            found[model.name] | {BOTH: found[model.name]["bf16"] + float32_mib(model)},
            ratios,
        )
        for model in models_of(quick)
    ]


def float32_mib(model: Model) -> float:
    return sum(weight.numel() * 4 for weight in model.make().parameters()) / (1 << 20)


def measure(quick: bool) -> Report:
    found = all_figures(quick)
    peaks, resident = training_peaks(quick, found["peak memory"]), inferring(quick, found["memory of inference"])
    text = f"""\
The models and variants of [Inference](#inference), one thread. A process for each variant reads its resident memory; `malloc` maps
every block of 64 KiB and more by itself, so that freed memory is resident no longer.

### Peak memory of a training step

All that is alive at once, weights and optimizer included: the peak (`VmHWM`, set back before the step), less what is resident when
model and optimizer are gone.

{table_of_comparisons(peaks)}

### Memory of inference

What stays between two calls: resident memory (`VmRSS`), less what is resident when the model and its copies are gone. A converted model keeps its
float32 weights and their copies in bfloat16, so it is compared with a model held in bfloat16 and float32 weights beside it. With
`hmp.cache.offload` the large float32 weights are in a file, so that is compared with the model in bfloat16, and with all copies
[in eight bits](int8.md), embeddings too, with the model in float32.

{table_of_comparisons(resident)}"""
    return Report("Memory", rows_of({"peak memory": peaks, "memory of inference": resident}), text)


if __name__ == "__main__":
    run(__doc__, measure)
