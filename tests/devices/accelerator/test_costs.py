"""What a step asks of the device beside torch.autocast: kernels, copies to and from the host, waits of the host, memory.

The late device has counters; on CUDA torch's profiler and its debug mode of synchronizations count.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile

from habana_mp import hmp

BF16 = torch.bfloat16
WIDTH = 128


class Asked(NamedTuple):
    kernels: int
    copies: int
    waits: int
    bytes: int


@pytest.fixture
def model(accelerator):
    layers = [nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)]
    return nn.Sequential(*layers).to(accelerator)


@pytest.fixture
def x(accelerator):
    return torch.randn(8, WIDTH, device=accelerator)


def asked_by(call):
    """Of the last of several calls."""
    for _ in range(3):
        torch.accelerator.synchronize()
        torch.accelerator.reset_peak_memory_stats()
        before = torch.accelerator.memory_allocated()
        call()
    most = torch.accelerator.max_memory_allocated() - before
    count = counted_by_cuda if torch.accelerator.current_accelerator().type == "cuda" else counted_by_late
    return Asked(*count(call), most)


def counted_by_late(call):
    counters = torch.ops.late
    counters.reset()
    call()
    return counters.kernels(), counters.copies(), counters.waits()


def counted_by_cuda(call):
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    names = [event.name for event in seen.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    copies = [name for name in names if name.startswith(("Memcpy HtoD", "Memcpy DtoH"))]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        call()
        torch.cuda.set_sync_debug_mode("default")
    waits = [each for each in said if "called a synchronizing CUDA operation" in str(each.message)]
    return len(names) - len(copies), len(copies), len(waits)


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


@pytest.mark.parametrize("front_end", ["convert", "region"])
def test_a_report_without_values_never_waits(accelerator, model, x, front_end):
    policy, region = hmp.Policy.load("balanced"), contextlib.nullcontext
    if front_end == "convert":
        hmp.convert(policy=policy)
    else:
        region = functools.partial(hmp.autocast, accelerator, BF16, policy=policy)

    @contextlib.contextmanager
    def reported():
        with hmp.report(), region():
            yield

    alone, watched = (training(model, x, each) for each in (region, reported))
    assert (watched.kernels, watched.copies, watched.waits) == (alone.kernels, 0, 0)


def values_of(row):
    """What is measured of an op's numbers: errors, ranges, what sums lose, choices."""
    values = row["values"]
    counted = {name: values[name] for name in ("range", "absorbed", "choices", "flipped")}
    return row["op"], row["calls"], counted, f"{values['ran']['squares']:.3g}", f"{values['low']['squares']:.3g}"


def values(run, region):
    with hmp.report(values=True) as report, region():
        run()
    return [values_of(row) for row in report.to_dict()["rows"] if "values" in row]


def nonfinite(run, region):
    with region():
        return hmp.find_nonfinite(lambda: run(float("inf"))).op


def compare(run, region):
    rows = hmp.compare(run, None, "balanced").rows
    return [(row.op, f"{row.made:.3g}", f"{row.total:.3g}", row.choices, row.flipped) for row in rows]


def tune(run, region):
    return hmp.tune(run, budget=0.02).error <= 0.02


# With the front ends that they look at, compare and tune at policies of their own, and how often they wait for the device in a step of 9 ops.
INSTRUMENTS = [
    (values, "convert", 33),
    (values, "region", 33),
    (nonfinite, "convert", 135),
    (nonfinite, "region", 135),
    (compare, "none", 272),
    (tune, "none", 4_000),  # 2,594 where each timed turn calls the step ten times; noise asks for more turns
]


@pytest.mark.parametrize(("ask", "front_end", "waits"), INSTRUMENTS, ids=lambda each: getattr(each, "__name__", each))
def test_instruments_answer_as_on_the_cpu(accelerator, model, x, ask, front_end, waits):
    if accelerator == "cuda":
        pytest.skip("its products are those of the CPU but for the rounding: test_training.py")
    model.eval()
    answers = []
    for device in ("cpu", accelerator):
        here, given = model.to(device), x.to(device)
        policy = hmp.Policy.load("balanced")
        region = contextlib.nullcontext
        if front_end == "convert":
            hmp.convert(policy=policy)
        elif front_end == "region":
            region = functools.partial(hmp.autocast, device, BF16, policy=policy)

        def run(factor=1.0, here=here, given=given):
            y = F.linear(here(given * factor), here[0].weight)
            with torch.no_grad():  # without gradients what is chosen otherwise in the low dtype is counted
                y.topk(40)
                y.gt(0)
            return y + given

        torch.ops.late.reset()
        answers.append(ask(run, region))
        hmp.revert()
    assert answers[0] == answers[1]
    assert 0 < torch.ops.late.waits() <= waits
