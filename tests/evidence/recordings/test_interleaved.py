"""Fused projections whose rows are ordered by head, against one projection for each of queries, keys and values."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional

from habana_mp import hmp
from tests.evidence.recordings.programs import record

RTOL = 1e-5


class Layout(NamedTuple):
    """Heads of queries, heads of keys, numbers of a head, and the groups of the fused rows: in each, its queries, its keys, its values."""

    queries: int
    keys: int
    size: int
    groups: int

    @property
    def width(self) -> int:
        return self.queries * self.size

    @property
    def lengths(self) -> tuple[int, int, int]:
        return self.width, self.keys * self.size, self.keys * self.size

    def fuse(self, *parts: torch.Tensor) -> torch.Tensor:
        return torch.cat([part.unflatten(0, (self.groups, -1)) for part in parts], 1).flatten(0, 1)

    def split(self, fused: torch.Tensor) -> list[torch.Tensor]:
        lengths = [length // self.groups for length in self.lengths]
        return [each.flatten(-2) for each in fused.unflatten(-1, (self.groups, -1)).split(lengths, -1)]


LAYOUTS = {
    "one behind the other": Layout(4, 4, 16, 1),
    "by head": Layout(4, 4, 16, 4),
    "by group of heads": Layout(8, 2, 16, 2),
    "one head of keys": Layout(4, 1, 16, 1),
    "by number": Layout(4, 4, 16, 64),
    "by head, wide": Layout(12, 12, 64, 12),
    "by group of heads, wide": Layout(32, 8, 32, 8),
}


class Attention(nn.Module):
    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.layout = layout
        self.q, self.k, self.v = (nn.Linear(layout.width, length) for length in layout.lengths)
        self.out = nn.Linear(layout.width, layout.width)

    def projections(self, x):
        return self.q(x), self.k(x), self.v(x)

    def forward(self, x):
        q, k, v = (each.unflatten(-1, (-1, self.layout.size)).transpose(1, 2) for each in self.projections(x))
        times = self.layout.queries // self.layout.keys
        k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
        return self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))


class Fused(Attention):
    def __init__(self, apart: Attention) -> None:
        super().__init__(apart.layout)
        self.load_state_dict(apart.state_dict())
        parts = (self.q, self.k, self.v)
        self.qkv = nn.Linear(self.layout.width, sum(self.layout.lengths))
        self.qkv.weight.data = self.layout.fuse(*(each.weight.data for each in parts))
        self.qkv.bias.data = self.layout.fuse(*(each.bias.data for each in parts))
        del self.q, self.k, self.v

    def projections(self, x):
        return self.layout.split(self.qkv(x))


@pytest.fixture(params=LAYOUTS)
def both(request):
    torch.manual_seed(0)
    apart = Attention(LAYOUTS[request.param])
    return apart, Fused(apart), torch.randn(2, 16, apart.layout.width)


def step(model, x):
    def run():
        model.zero_grad()
        y = model(x)
        y.square().mean().backward()
        return y

    return run


def compared(a, b, x):
    record("a.rec", step(a, x))
    record("b.rec", step(b, x))
    return [hmp.compare("a.rec", "b.rec", rtol=RTOL), hmp.compare(step(b, x), "a.rec", rtol=RTOL)]


def test_the_same_weights_are_the_same(both, here):
    apart, fused, x = both
    for found in (*compared(apart, fused, x), *compared(fused, apart, x)):
        assert found.same, str(found)
        assert not [row for row in found.rows if row.op == "linear"], str(found)


@pytest.mark.parametrize("part", ["q", "k", "v"])
def test_a_weight_that_is_scaled_is_named(part, both, here):
    apart, fused, x = both
    getattr(apart, part).weight.data.mul_(1.5)
    for found in compared(apart, fused, x):
        assert found.first.module == "Fused: qkv", str(found)
        assert found.first.counterpart == ", ".join(f"linear in Attention: {each}" for each in "qkv")
    for found in compared(fused, apart, x):
        assert found.first.op == "linear"
        assert found.first.counterpart == "linear in Fused: qkv"
        if (
            apart.layout.width < 700
        ):  # else the samples of keys and values may have no number in common with those of the whole
            assert found.first.module == f"Attention: {part}", str(found)


def test_rows_of_another_head_are_named(both, here):
    apart, fused, x = both
    weight = apart.k.weight
    weight.data = weight.data.roll(apart.layout.size // 2, 0)
    for found in compared(apart, fused, x):
        assert not found.same
        if apart.layout.width < 700:
            assert found.first.module == "Fused: qkv", str(found)
