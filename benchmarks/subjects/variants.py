"""The variants of a model that take turns: float32, torch.autocast, held in bfloat16, converted, and in a region of hmp.autocast."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from harness.device import DEVICE
from harness.timing import keep_freed_memory, shortest, take_turns, timer

from habana_mp import hmp

Scope = Callable[[], AbstractContextManager[Any]]
# Calls of every visit. The first fills what a variant keeps, the second finds it. In training, the first three after a convert also get the
# memory for it.
WARM_UP = 4


@contextlib.contextmanager
def converted(policy: hmp.Policy | str | None = None, log: str = "") -> Iterator[None]:
    if log:
        os.environ["HABANA_MP_LOG"] = log
    hmp.convert(policy=policy)
    try:
        yield
    finally:
        hmp.revert()
        os.environ.pop("HABANA_MP_LOG", None)


def autocast() -> AbstractContextManager[Any]:
    return torch.autocast(DEVICE, torch.bfloat16)


@dataclass(frozen=True)
class Variant:
    # Around the whole visit, around forward and loss, around the update.
    process: Scope = nullcontext
    forward: Scope = nullcontext
    update: Scope = nullcontext
    held: bool = False


AS_AUTOCAST = f"hmp: torch-{DEVICE}"  # casts what torch.autocast casts


def as_autocast() -> AbstractContextManager[Any]:
    return converted(hmp.Policy.load(f"torch-{DEVICE}").with_low_dtype(torch.bfloat16))


def of_8_bits(title: str) -> hmp.Policy:
    """Linear layers and convolutions in a list for 8 bits, all else as in hmp."""
    return hmp.Policy.load("hmp").with_edits(*(f"+{op}:{title}" for op in ("linear", "addmm", "conv2d")))


def in_8_bits(title: str) -> Scope:
    policy = of_8_bits(title)
    return lambda: converted(policy)


INT8 = ("weight_int8", "int8")
FLOATING = {
    "fp32": Variant(),
    "autocast": Variant(forward=autocast),
    "bf16": Variant(held=True),
    "hmp": Variant(process=converted, update=hmp.disable_casts),
    AS_AUTOCAST: Variant(process=as_autocast, update=hmp.disable_casts),
    "hmp.autocast": Variant(forward=lambda: hmp.autocast(DEVICE, torch.bfloat16)),
}
VARIANTS = {**FLOATING, **{title: Variant(process=in_8_bits(title)) for title in INT8}}
OURS = ("hmp", AS_AUTOCAST)


@dataclass(frozen=True)
class Turns:
    """How long the variants of one comparison take turns: at least so many rounds of so many runs."""

    rounds: int
    seconds: float  # for the rounds of one comparison
    runs: int
    visit_seconds: float


# A machine with a GPU is had for minutes.
SECONDS = 5 if DEVICE == "cpu" else 1.5
QUICK_TURNS = Turns(rounds=1, seconds=0, runs=1, visit_seconds=0)


def compare(turns: Turns, calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Milliseconds of a call, by variant."""
    keep_freed_memory()

    def visit(name: str) -> float:
        with VARIANTS[name].process():
            call = timer(calls[name])
            call.timeit(WARM_UP)
            return shortest(call, turns.runs, seconds=turns.visit_seconds) * 1e3

    return take_turns({name: functools.partial(visit, name) for name in calls}, turns.rounds, turns.seconds)
