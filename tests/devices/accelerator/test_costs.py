"""What a step asks of the device beside torch.autocast: kernels, copies to and from the host, waits of the host, memory.

Counted on the late device, which has counters.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp

BF16 = torch.bfloat16
WIDTH = 128


class Asked(NamedTuple):
    kernels: int
    copies: int
    waits: int
    bytes: int


@pytest.fixture(autouse=True)
def _only_there(accelerator):
    if accelerator != "late":
        pytest.skip("the late device has counters")


@pytest.fixture
def model(accelerator):
    layers = [nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)]
    return nn.Sequential(*layers).to(accelerator)


@pytest.fixture
def x(accelerator):
    return torch.randn(8, WIDTH, device=accelerator)


def asked_by(call):
    """Of the last of three calls."""
    for _ in range(3):
        torch.accelerator.synchronize()
        torch.accelerator.reset_peak_memory_stats()
        before = torch.accelerator.memory_allocated()
        torch.ops.late.reset()
        call()
    counters = torch.ops.late
    most = torch.accelerator.max_memory_allocated() - before
    return Asked(counters.kernels(), counters.copies(), counters.waits(), most)


def training(model, x, region):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        with region():
            loss = F.mse_loss(model(x).float(), x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return asked_by(step)


def inference(model, x, region):
    def infer():
        with torch.no_grad(), region():
            model(x)

    return asked_by(infer)


@pytest.mark.parametrize("kind", [training, inference])
@pytest.mark.parametrize("name", ["convert", "region"])
def test_no_more_than_torch_autocast(accelerator, model, x, kind, name):
    policy = hmp.Policy.load("torch-cuda").with_low_dtype(BF16)
    expected = kind(model, x, lambda: torch.autocast(accelerator, BF16))
    if name == "convert":
        hmp.convert(policy=policy)
        found = kind(model, x, contextlib.nullcontext)
    else:
        found = kind(model, x, lambda: hmp.autocast(accelerator, BF16, policy=policy))
    assert (found.copies, found.waits) == (expected.copies, expected.waits) == (0, 0)
    assert found.kernels <= expected.kernels
    assert found.bytes <= 1.02 * expected.bytes


def test_a_report_without_values_never_waits(model, x):
    hmp.convert(policy="balanced")
    alone = training(model, x, contextlib.nullcontext)
    watched = training(model, x, hmp.report)
    assert (watched.kernels, watched.copies, watched.waits) == (alone.kernels, 0, 0)


def with_values(run):
    with hmp.report(values=True) as report:
        run()
    return report


def values_of(row):
    """What is measured of an op's numbers: errors, ranges, what sums lose, choices."""
    values = row["values"]
    counted = {name: values[name] for name in ("range", "absorbed", "choices", "flipped")}
    return row["op"], row["calls"], counted, f"{values['ran']['squares']:.3g}", f"{values['low']['squares']:.3g}"


INSTRUMENTS = {
    "values": lambda run: [values_of(row) for row in with_values(run).to_dict()["rows"]],
    "nonfinite": lambda run: [str(hmp.find_nonfinite(lambda: run(float("inf"))).op)],
    "compare": lambda run: [
        (row.op, f"{row.made:.3g}", f"{row.total:.3g}", row.choices, row.flipped)
        for row in hmp.compare(run, None, "balanced").rows
    ],
    "tune": lambda run: [hmp.tune(run, budget=0.02).error <= 0.02],
}


@pytest.mark.parametrize("name", INSTRUMENTS)
def test_instruments_answer_as_on_the_cpu(accelerator, model, x, name):
    """And wait for the device less than for each number."""
    model.eval()
    answers = []
    for device in ("cpu", accelerator):
        here, given = model.to(device), x.to(device)
        torch.ops.late.reset()
        if name in ("values", "nonfinite"):
            hmp.convert(policy="balanced")

        def run(factor=1.0, here=here, given=given):
            y = here(given * factor) + given
            y.topk(2)
            return y

        answers.append(INSTRUMENTS[name](run))
        hmp.revert()
    assert answers[0] == answers[1]
    assert 0 < torch.ops.late.waits() < 2_000
