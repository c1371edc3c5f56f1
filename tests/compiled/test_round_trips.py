"""D55: casts to a lower dtype and back that Inductor drops (habana_mp/_compiled/round_trips.py) are kept in graphs of ours, and in these alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from drawn_models import converted
from torch._inductor import config, scheduler
from torch._inductor.analyze_preserves_zero_mask import prologue_preserves_zero_mask
from torch._inductor.utils import fresh_cache

from habana_mp import hmp
from habana_mp._torch_private import VERSION

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own

BF16 = torch.bfloat16
EXACT = hmp.Policy.from_ops(lower=["mul"], fp32=["add"])
FRONT_ENDS: dict[str, Callable[[], AbstractContextManager]] = {
    "convert": lambda: converted(policy=EXACT),
    "autocast": lambda: hmp.autocast("cpu", policy=EXACT),
}


def a() -> torch.Tensor:
    return torch.randn(16, 64)


FLOAT8 = torch.float8_e4m3fn
# Casts one after the other, which Inductor joins or drops.
CASTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "positions in bfloat16": lambda x: x[0, 0] + torch.arange(300, 700, dtype=BF16).float(),
    "positions in float16": lambda x: x[0, 0] + torch.arange(4000, 4100).half().float(),
    "positions that are scaled in bfloat16": lambda x: x[0, 0] + (torch.arange(300, 700).to(BF16) * 3).float(),
    "from float8": lambda x: x.to(FLOAT8).float().to(BF16).float(),
    "to float8 and back": lambda x: x.to(BF16).to(FLOAT8).float(),
    "whole numbers": lambda x: (x * 999).long().to(BF16).float(),
    "float64": lambda x: x.double().to(BF16).double().float(),
}


@pytest.mark.parametrize("casts", CASTS.values(), ids=CASTS)
@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_casts_one_after_the_other(front_end: str, casts) -> None:
    x = a()
    with FRONT_ENDS[front_end](), torch.no_grad():
        assert torch.equal(torch.compile(casts, fullgraph=True)(x), casts(x))


# In a process of its own: each graph here would be the first that Inductor compiles.
ANOTHER_COMES_FIRST = """
import torch
from torch._inductor import config
from habana_mp import hmp

def step(x):
    return (x.bfloat16() * x.bfloat16() * x.bfloat16()).float()

def bits(policy, **settings):
    torch._dynamo.reset()
    x = torch.linspace(1, 2, 64)
    with hmp.autocast("cpu", policy=policy), config.patch(fx_graph_cache=False, **settings), torch.no_grad():
        return torch.equal(torch.compile(step, fullgraph=True)(x), step(x))

torch.compile(lambda x: x.bfloat16().float() * 2)(torch.ones(8))
exact, fused = (hmp.Policy.from_ops(lower=["mul"], fp32=[], compiled=compiled) for compiled in ("exact", "fused"))
print(bits(fused, emulate_precision_casts=True), bits(exact), bits(fused, emulate_precision_casts=True), bits(fused))
"""


def test_graphs_of_others_may_come_first() -> None:
    """Before torch 2.13 each graph of ours raised then: torch has patterns of other kinds by that time."""
    command = [sys.executable, "-W", "ignore", "-c", ANOTHER_COMES_FIRST]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "True", "True", "False"], done.stderr


@pytest.mark.parametrize("policy", [None, EXACT], ids=["no policy", "exact"])
def test_what_the_scheduler_asks_of_casts(policy: hmp.Policy | None, monkeypatch) -> None:
    """Before a product by Triton it asks whether zeros stay zeros, by a class that shares its casts with those of indices."""
    answers = []

    class Asking(scheduler.Scheduler):
        def __init__(self, *args) -> None:
            super().__init__(*args)
            nodes = [node for node in self.nodes if isinstance(node, scheduler.SchedulerNode)]
            answers.extend(map(prologue_preserves_zero_mask, nodes))

    monkeypatch.setattr(scheduler, "Scheduler", Asking)
    with (
        hmp.autocast("cpu", policy=policy) if policy else nullcontext(),
        config.patch(fx_graph_cache=False),
        torch.no_grad(),
    ):
        torch.compile(lambda x: x.to(BF16).float() * 2)(a())
    assert answers == [True]


ROUNDED_TWICE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a cast and one back": lambda x: (x * 1.7).bfloat16().float(),
    "an op on the result of another": lambda x: (x.bfloat16() * x.bfloat16() * x.bfloat16()).float(),
}


@pytest.mark.parametrize("function", ROUNDED_TWICE.values(), ids=ROUNDED_TWICE)
def test_the_setting_of_a_user_does_what_it_does_in_torch(function) -> None:
    """Before torch 2.13 it leaves roundings out, which in our graphs are kept."""
    x = a()
    with fresh_cache(), config.patch(emulate_precision_casts=True):
        with hmp.autocast("cpu", policy=EXACT):
            ours = torch.compile(lambda x: function(torch.exp(x)), fullgraph=True)(x)
        torch._dynamo.reset()
        found = torch.compile(lambda x: function(torch.exp(x)), fullgraph=True)(x)
    expected = function(torch.exp(x))
    assert torch.equal(found, expected) == (VERSION >= (2, 13))
    with hmp.autocast("cpu", policy=EXACT):
        assert torch.equal(ours, function(torch.exp(x)))
