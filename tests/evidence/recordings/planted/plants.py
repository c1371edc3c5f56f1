"""Differences planted in the small GPT of programs.py, where run b is another program than run a: what is changed, and what may be named."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from tests.evidence.recordings.programs import GPT, by_token, gpt, trained, whole

Run = Callable[[GPT], torch.Tensor]


class Program(NamedTuple):
    """How run b makes its model, and how the two run."""

    make: Callable[[], GPT]
    run_a: Run
    run_b: Run

    @property
    def by_token(self) -> bool:
        return self.run_b is by_token


PROGRAMS = {
    "the same": Program(gpt, whole, whole),
    "fused projections": Program(lambda: gpt(fused=True), whole, whole),
    "attention of several ops": Program(lambda: gpt(kernel=False), whole, whole),
    "fused, of several ops": Program(lambda: gpt(fused=True, kernel=False), whole, whole),
    "one token at a time": Program(gpt, whole, by_token),
    "one token at a time, fused": Program(lambda: gpt(fused=True), whole, by_token),
    "fused projections, trained": Program(lambda: gpt(fused=True), trained, trained),
}


class Plant(NamedTuple):
    """A change of run b's model, the module it is in, and the ops that may be named for it."""

    change: Callable[[GPT], object]
    module: str
    ops: set[str]


class _Half(nn.Linear):
    """A layer in float16 in a model in float32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.half()).float()


def _epsilon(model: GPT) -> None:
    model.h[1].norm2.eps = 1e-2


def _flipped(model: GPT) -> None:
    weight = model.h[1].up.weight
    weight.data = weight.data.flip(0)


def _mask(model: GPT) -> None:
    model.h[1].attn.window = 4


def _half(model: GPT) -> None:
    layer = model.h[0].down.half()
    layer.__class__ = _Half


def _no_cast(model: GPT) -> None:
    """All programs round what leaves attention of the last block to bfloat16."""
    model.h[1].rounds = False


def _order(model: GPT) -> None:
    block = model.h[0]
    block.mlp = lambda x: functional.gelu(block.down(block.up(x)))


def _stale(model: GPT) -> None:
    model.h[1].attn.stale = True


# A mask of one token has other sizes than that of a whole sequence, so there the first op of the mask is named.
PLANTS = {
    "another epsilon": Plant(_epsilon, "h.1.norm2", {"layer_norm"}),
    "a dropped cast": Plant(_no_cast, "h.1", {"to"}),
    "a permuted weight": Plant(_flipped, "h.1.up", {"linear"}),
    "another mask": Plant(_mask, "h.1.attn", {"sub", "arange", "scaled_dot_product_attention"}),
    "a layer in float16": Plant(_half, "h.0.down", {"to", "linear"}),
    "an op of another order": Plant(_order, "h.0", {"gelu"}),
    "a stale cache of keys": Plant(_stale, "h.1.attn", {"cat", "copy_", "scaled_dot_product_attention"}),
}
CASES = [
    (program, plant)
    for program in PROGRAMS
    for plant in PLANTS
    if PROGRAMS[program].by_token or plant != "a stale cache of keys"
]


def first(program: str) -> Callable[[], torch.Tensor]:
    """Run a."""
    made = gpt()
    return lambda: PROGRAMS[program].run_a(made)


def second(program: str, plant: str = "") -> Callable[[], torch.Tensor]:
    """Run b, with a planted difference or without."""
    made = PROGRAMS[program].make()
    if plant:
        PLANTS[plant].change(made)
    return lambda: PROGRAMS[program].run_b(made)
