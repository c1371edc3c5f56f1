"""Recurrent layers under every instrument (D50): oneDNN's backward consumes its workspace, so a second run of it ends the process.

Each case runs in a process of its own, and must leave the same results, gradients and random numbers as without the instrument.
"""

from __future__ import annotations

import subprocess
import sys
from itertools import product

import pytest
from subprograms import STRICT

PROGRAM = """
import sys
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from habana_mp import hmp

front_end, preset, low = sys.argv[1], sys.argv[2], getattr(torch, sys.argv[3])

LAYERS = {
    "LSTM": lambda: nn.LSTM(256, 128),
    "LSTM of 2 layers, both ways": lambda: nn.LSTM(32, 16, 2, bidirectional=True),
    "LSTM of 3 layers, batch first": lambda: nn.LSTM(32, 16, 3, batch_first=True),
    "LSTM, proj_size": lambda: nn.LSTM(32, 16, proj_size=8),
    "LSTM, dropout": lambda: nn.LSTM(32, 16, 2, dropout=0.5),
    "LSTM, packed": lambda: nn.LSTM(32, 16),
    "LSTM without bias": lambda: nn.LSTM(32, 16, bias=False),
    "GRU": lambda: nn.GRU(32, 16, 2, bidirectional=True, dropout=0.25),
    "GRU, packed": lambda: nn.GRU(32, 16),
    "RNN": lambda: nn.RNN(32, 16),
    "RNN, relu": lambda: nn.RNN(32, 16, 2, nonlinearity="relu", batch_first=True),
    "LSTMCell": lambda: nn.LSTMCell(32, 16),
    "GRUCell": lambda: nn.GRUCell(32, 16),
}


def step_of(name, layer):
    width = 256 if name == "LSTM" else 32
    x = torch.randn(6, 4, width, generator=torch.Generator().manual_seed(1))
    if "Cell" in name:
        x = x[0]
    if "packed" in name:
        x = pack_padded_sequence(x, [6, 5, 3, 2])

    def step():
        with region():
            found = layer(x)
        found = found[0] if isinstance(found, tuple) else found
        found = found.data if isinstance(found, PackedSequence) else found
        loss = found.float().square().mean()
        loss.backward()
        return loss

    return step


regions = True  # tune refuses a step that enters one


def region():
    if front_end == "convert" or not regions:
        return torch.enable_grad()
    return hmp.autocast("cpu", dtype=low, policy=preset)


def measured(values):
    def run(step):
        with hmp.report(values=values) as report:
            found = step()
        print(report)
        return found
    return run


def found_nonfinite(step):
    returned = []
    assert hmp.find_nonfinite(lambda: returned.append(step())) is None
    return returned[0]


def compared(step):
    found = hmp.compare(step, step)
    assert str(found)
    return step()


def compared_policies(step):
    assert str(hmp.compare(step, None, preset))
    return step()


def tuned(step):
    global regions
    regions = False
    hmp.tune(step, 0.5, start=preset, others="lower", cost="numbers", seed=3)
    regions = True
    return step()


INSTRUMENTS = {
    "values": measured(True), "errors": measured("errors"), "find_nonfinite": found_nonfinite, "compare": compared,
    **({} if front_end == "convert" else {"compare policies": compared_policies, "tune": tuned}),
}


def ran(name, make, run):
    torch.manual_seed(0)
    layer = make()
    loss = run(step_of(name, layer))
    return [loss.detach(), *(each.grad for each in layer.parameters()), torch.get_rng_state()]


if front_end == "convert":
    hmp.convert(policy=preset, low_precision_type=low)
for name, make in LAYERS.items():
    plain = ran(name, make, lambda step: step())
    for instrument, run in INSTRUMENTS.items():
        print(f"{name}: {instrument}", flush=True)
        looked = ran(name, make, run)
        for a, b in zip(plain, looked, strict=True):
            assert torch.equal(a, b), (name, instrument)
print("all ran")
"""

FAST = (("autocast", "torch-cpu", "bfloat16"), ("convert", "balanced", "bfloat16"))
CASES = [
    pytest.param(case, id=" ".join(case), marks=() if case in FAST else pytest.mark.slow)
    for case in product(("autocast", "convert"), ("torch-cpu", "balanced", "hmp"), ("bfloat16", "float16"))
]


@pytest.mark.parametrize("case", CASES)
def test_recurrent_layers_are_looked_at_and_not_touched(case: tuple[str, str, str]) -> None:
    ran = subprocess.run(
        [sys.executable, *STRICT, "-W", "ignore:LSTM with projections", "-c", PROGRAM, *case],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout.endswith("all ran\n"), f"{ran.returncode}: {ran.stdout[-300:]}\n{ran.stderr[-3000:]}"
