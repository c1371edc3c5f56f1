"""The report: what it counts, beside independent counts of torch's own; what it says of it."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from habana_mp import hmp


class Block(nn.Module):
    """A transformer block whose weights are small enough to be cast each time, or large enough to be cached."""

    def __init__(self, width=32):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        h = self.norm(x)
        scores = self.query(h) @ self.key(h).transpose(-1, -2)
        x = x + self.out(F.softmax(scores, -1) @ self.value(h))
        return x + self.down(F.gelu(self.up(x)))


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn, self.conv2 = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3)
        self.head = nn.Linear(8 * 4 * 4, 10)

    def forward(self, x):
        x = F.relu(self.bn(self.conv1(x)))
        return self.head(F.relu(self.conv2(x)).flatten(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(20, 16), nn.GRU(16, 64, batch_first=True), nn.Linear(64, 20)

    def forward(self, x):
        return F.log_softmax(self.head(self.cell(self.embed(x))[0]), -1)


MODELS = {
    "transformer": (lambda: nn.Sequential(*[Block(80) for _ in range(2)]), lambda: torch.randn(2, 6, 80)),
    "convolutions": (Convolutions, lambda: torch.randn(2, 3, 8, 8)),
    "recurrent": (Recurrent, lambda: torch.randint(0, 20, (2, 5))),
}
BOTH = pytest.mark.parametrize("front_end", ["convert", "autocast"])


def run(front_end, function, policy="hmp"):
    """What ``function`` does under a front end."""
    if front_end == "autocast":
        with hmp.autocast("cpu", policy=hmp.Policy.load(policy)):
            return function()
    hmp.convert(policy=policy)
    try:
        return function()
    finally:
        hmp.revert()


def casts_of_debug_mode(function):
    from torch.utils._debug_mode import DebugMode

    with DebugMode() as mode:
        function()
    return sum("_to_copy" in str(line) for line in mode.debug_string().splitlines())


def casts_of_profiler(function, path):
    """The copies from one dtype to another, which every cast of ATen ends in, but for those that other ops of ATen make."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        function()
    profile.export_chrome_trace(str(path))
    events = [e for e in json.loads(path.read_text())["traceEvents"] if e.get("cat") == "cpu_op"]
    others = [
        e for e in events if not any(part in e["name"] for part in ("::to", "::copy_", "_to_copy", "CopyBackwards"))
    ]

    def is_cast(event):
        target, source, *_ = event["args"]["Input type"]
        return target != source and not any(
            other["tid"] == event["tid"] and 0 <= event["ts"] - other["ts"] < other["dur"] for other in others
        )

    return sum(is_cast(event) for event in events if event["name"] == "aten::copy_")


@BOTH
@pytest.mark.parametrize("model", MODELS)
def test_it_counts_the_casts_that_debug_mode_sees(model, front_end):
    make, data = MODELS[model]
    net, x = make(), data()

    def both():
        with hmp.report() as r:
            seen = casts_of_debug_mode(lambda: net(x))
        return r, seen

    r, seen = run(front_end, both)
    assert seen > 0
    assert r.casts() == seen


@pytest.mark.parametrize("model", ["transformer", "convolutions"])
def test_it_counts_the_casts_that_the_profiler_sees(model, tmp_path):
    """Backward ones too. What the weight cache serves is no cast for the profiler.

    In ``autocast`` casts are parts of ops for it, and so they are in recurrent layers, which are made of other ops (D41).
    """
    make, data = MODELS[model]
    net, x = make(), data()

    def both():
        with hmp.report() as r:
            seen = casts_of_profiler(lambda: [net(x).sum().backward() for _ in range(3)], tmp_path / "trace")
        return r, seen

    r, seen = run("convert", both)
    assert r.casts() - r.cache_hits() + r.backward_casts() == seen
    assert r.backward_casts() > 0
    if model == "transformer":
        assert r.cache_hits() > 0
