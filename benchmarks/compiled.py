"""Inference and training step of whole models under torch.compile: float32, torch.autocast, held in bfloat16, and converted: with all
roundings of the lists ("exact"), and with those that Inductor keeps ("fused").

Each variant has a process of its own, because a conversion is in force for the whole process and graphs are compiled anew after it.
The processes take turns.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import timeit
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from harness.command import run
from harness.pages import Report
from harness.rows import Comparison, Ratio, rows_of, table_of_comparisons
from harness.timing import keep_freed_memory, shortest, take_turns
from subjects import model_zoo, steps
from subjects.model_zoo import Model, forward
from subjects.steps import infer, inference_of, named
from subjects.variants import VARIANTS, Variant, converted

from habana_mp import hmp

FUSED = "hmp: fused"  # Inductor may leave roundings out
NAMES = ("fp32", "autocast", "bf16", "hmp", FUSED, "hmp.autocast")
OURS = ("hmp", "hmp.autocast")


def fused() -> AbstractContextManager[Any]:
    return converted(hmp.Policy(hmp.Policy.load("hmp")._core.replaced(compiled="fused")))


COMPILED = {**VARIANTS, FUSED: Variant(process=fused, update=hmp.disable_casts)}


@dataclass(frozen=True)
class Effort:
    models: list[Model]
    batches: tuple[int, ...]
    threads: tuple[int, ...]
    rounds: int
    runs: int
    visit_seconds: float


FULL = Effort(
    [
        model_zoo.mlp(1024, 3),
        model_zoo.cnn(32),
        model_zoo.transformer_encoder(3, 256, fast_path=False),
        model_zoo.gpt2(2, 256),
    ],
    batches=(1, 8),
    threads=(1, 2),
    rounds=6,
    runs=3,
    visit_seconds=0.15,
)
QUICK = Effort(
    [model_zoo.mlp(256, 2)],
    batches=(1,),
    threads=(1,),
    rounds=1,
    runs=1,
    visit_seconds=0,
)
WARM_UP = 3  # calls of every visit; the first of all compiles
COMPILING = 2  # processes that compile at a time; nothing is measured meanwhile


@dataclass(frozen=True)
class Case:
    training: bool
    model: Model
    batch: int
    threads: int


def cases(effort: Effort) -> list[Case]:
    found = [
        Case(False, model, batch, threads)
        for model in effort.models
        for batch in effort.batches
        for threads in effort.threads
    ]
    return found + [
        Case(True, model, effort.batches[-1], threads) for model in effort.models for threads in effort.threads
    ]


# One variant


class Trainer(steps.Trainer):
    def __init__(self, model: Model, batch: int, variant: Variant) -> None:
        super().__init__(model, batch, variant)
        self.module.compile(dynamic=False)


def call_of(case: Case, variant: Variant) -> Callable[[], object]:
    torch.manual_seed(0)
    if case.training:
        trainer = Trainer(case.model, case.batch, variant)

        def step() -> None:
            with variant.forward():
                loss = trainer.loss(forward(trainer.module, trainer.x), trainer.target)
            loss.backward()
            trainer.module.zero_grad(set_to_none=True)

        return step
    module, x = inference_of(case.model, case.model.make().eval(), case.batch, variant)
    module.compile(dynamic=False)
    return functools.partial(infer, module, x, variant)


def serve(name: str, quick: str) -> None:
    """Reads numbers of cases, and prints the milliseconds of a call."""
    warnings.simplefilter("ignore")
    keep_freed_memory()
    effort = QUICK if int(quick) else FULL
    variant, all_cases = COMPILED[name], cases(effort)
    calls: dict[int, Callable[[], object]] = {}
    with variant.process():
        for line in sys.stdin:
            number = int(line)
            case = all_cases[number]
            torch.set_num_threads(case.threads)
            if number not in calls:
                calls.clear()
                torch.compiler.reset()
                calls[number] = call_of(case, variant)
            timer = timeit.Timer(calls[number])
            timer.timeit(WARM_UP)
            taken = shortest(timer, effort.runs, seconds=effort.visit_seconds) * 1e3
            print(json.dumps(taken), flush=True)


class Server:
    def __init__(self, name: str, quick: bool) -> None:
        command = "import sys, compiled; compiled.serve(*sys.argv[1:])"
        self.process = subprocess.Popen(
            [sys.executable, "-c", command, name, str(int(quick))],
            cwd=Path(__file__).parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def visit(self, number: int) -> float:
        pipe_in, pipe_out = self.process.stdin, self.process.stdout
        assert pipe_in is not None
        assert pipe_out is not None
        print(number, file=pipe_in, flush=True)
        return float(pipe_out.readline())

    def close(self) -> None:
        self.process.communicate()


# All of them


def measure(quick: bool) -> Report:
    effort = QUICK if quick else FULL
    servers = {name: Server(name, quick) for name in NAMES}
    inferences, trainings = [], []
    for number, case in enumerate(cases(effort)):
        visits = {name: functools.partial(server.visit, number) for name, server in servers.items()}
        with ThreadPoolExecutor(COMPILING) as pool:
            list(pool.map(lambda visit: visit(), visits.values()))
        taken = take_turns(visits, effort.rounds)
        what = named(case.model, case.batch, case.threads)
        if case.training:
            ratios = [*(Ratio(name, "autocast") for name in OURS), Ratio("hmp", FUSED)]
            trainings.append(Comparison(what, "ms", taken, ratios))
        else:
            ratios = [*(Ratio(name, "bf16") for name in OURS), Ratio("hmp", "autocast"), Ratio("hmp", FUSED)]
            inferences.append(Comparison(what, "ms", taken, ratios))
        print(what, "training" if case.training else "inference", taken, file=sys.stderr, flush=True)
    for server in servers.values():
        server.close()
    text = f"""\
The models are compiled by `torch.compile(dynamic=False)`, as in [Inference](#inference) otherwise: random weights, sequences of
{model_zoo.SEQUENCE}; every variant has a process of its own, and the processes take turns. "{FUSED}" is the policy with `compiled = "fused"`: Inductor may leave
out roundings ([torch.compile](compile.md#rounding)).

### Compiled inference

Under `torch.inference_mode()`.

{table_of_comparisons(inferences)}

### Compiled training

Forward, loss and backward; the loss is not compiled.

{table_of_comparisons(trainings)}"""
    rows = rows_of({"compiled inference": inferences, "compiled training": trainings})
    return Report("Compiled models", rows, text)


if __name__ == "__main__":
    run(__doc__, measure)
