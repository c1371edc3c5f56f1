"""Choices that differ between two runs: what argmax, topk, sort, comparisons and sampling make of hardly other numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from habana_mp import hmp

LOW = hmp.Policy.from_ops(lower=["mul"])


class Chooses(nn.Module):
    def __init__(self, choose) -> None:
        super().__init__()
        self.choose = choose

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.choose(torch.mul(x, 1.0))


def near() -> torch.Tensor:
    """1,024 rows of four numbers. In every fourth row the last two are so near to each other that bfloat16 makes them equal."""
    x = torch.tensor([1.0, 0.5, 2.0, 2.25]).repeat(1024, 1)
    x[::4, 2] = 2.0
    x[::4, 3] = 2.001
    return x


def flips(choose, x: torch.Tensor, policy: hmp.Policy = LOW):
    model = Chooses(choose)
    found = hmp.compare(lambda: model(x), None, policy)
    return {row.op: (row.flipped, row.choices) for row in found.flips()}, found


@pytest.mark.parametrize(
    ("choose", "expected"),
    [
        (lambda x: x.argmax(-1), {"argmax": (256, 1024)}),
        (lambda x: x.max(-1).indices, {"max": (256, 1024)}),
        (lambda x: x.topk(1, -1).indices, {"topk": (256, 1024)}),
        (lambda x: x.topk(2, -1).indices, {}),  # the same two, in another order
        (lambda x: x.t().topk(1, 0).indices, {"topk": (256, 1024)}),
        (lambda x: x > 2.0005, {"gt": (256, 4096)}),
        (lambda x: x[:, 3] == x[:, 2], {"eq": (256, 1024)}),
        (lambda x: (x * 1000).long(), {"to": (768, 4096)}),  # 2250 becomes 2256
        (lambda x: torch.argmax(x[0]), {"argmax": (1, 1)}),
        (lambda x: x.sum(-1), {}),
    ],
    ids=[
        "argmax",
        "max",
        "topk 1",
        "topk 2",
        "topk of columns",
        "mask",
        "equal",
        "whole numbers",
        "one token",
        "no choice",
    ],
)
def test_choices_that_differ_are_counted(choose, expected):
    with torch.no_grad():
        found, _ = flips(choose, near())
    assert found == expected


def test_of_the_same_run_no_choice_differs():
    x = torch.rand(64, 16)
    found, comparison = flips(lambda x: torch.multinomial(x.softmax(-1), 1), x, hmp.Policy.from_ops(lower=[]))
    assert found == {}
    assert comparison.same


def test_all_calls_of_a_place_count():
    """Of two calls one chooses alike."""
    model, x = Chooses(lambda x: x.argmax(-1)), near()

    def step():
        return model(x), model(x.round())

    with torch.no_grad():
        (row,) = hmp.compare(step, None, LOW).flips()
    assert (row.flipped, row.choices) == (256, 2048)


def test_experts_of_a_router_that_learns():
    """With gradients, too, and by the module that chooses."""

    class Router(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(64, 8, bias=False)

        def forward(self, x):
            return functional.softmax(self.gate(x), -1).topk(2, -1)

    torch.manual_seed(0)
    model = nn.Sequential(Router())
    x = torch.randn(512, 64)
    chosen = []

    def step():
        values, places = model(x)
        chosen.append(places.sort(-1).values)
        values.sum().backward()

    found = hmp.compare(step, None, hmp.Policy.from_ops(lower=["linear"]))
    (row,) = (row for row in found.flips() if row.op == "topk")
    assert row.module == "Sequential: 0"
    assert row.flipped == (chosen[0] != chosen[1]).any(-1).sum().item() > 0
    assert row.choices == 512
    assert f"topk in Sequential: 0: {row.flipped} of 512 choices differ" in str(found)
    assert found.to_dict()["rows"][0].keys() >= {"flipped", "choices"}
    assert "choices" in found.to_html()
