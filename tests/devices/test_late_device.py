"""Runs this folder on the late device, in processes of their own: its name and its threads are of a whole process.

The device (late/) computes on the CPU, and is as asynchronous as CUDA: each stream is a thread that begins its tasks late, memory of the device cannot be
read by the host, and what is freed is filled with NaNs when its stream has come so far. What waits too little gets wrong numbers here, without a GPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from late_device import build

pytestmark = [
    pytest.mark.xdist_group("late_device"),
    pytest.mark.unsanitized(reason="it loads a library without the sanitizers"),
    pytest.mark.skipif("HABANA_MP_LATE_LIBRARY" in os.environ, reason="this is the late device"),
    pytest.mark.skipif(not hasattr(torch.Stream, "is_capturing"), reason="this torch knows of captures on CUDA alone"),
]

HERE = Path(__file__).parent
START = """
import ctypes
import sys
import torch
from late_device import register

register(sys.argv[1], seed=0)
side = torch.Stream("late")

def ones():
    made = torch.ones(64, 64, device="late")
    torch.accelerator.synchronize()
    return made

def all_are(tensor, value):
    torch.accelerator.synchronize()
    return bool((tensor == value).all())
"""
READ = """
x = ones()
assert x.cpu().tolist() == [[1.0] * 64] * 64
ctypes.string_at(x.data_ptr(), 16)
"""
# What a program gets that waits too little, and one that waits.
LATE = """
for waits in (False, True):
    x = ones()
    with side:
        torch.ops.late.sleep(20_000)
        y = x * 2
    if waits:
        torch.accelerator.current_stream().wait_stream(side)
    assert all_are(y + 0, 2) == waits, "a stream's result"

    x = ones()
    with side:
        torch.ops.late.sleep(20_000)
        y = x * 2
    if waits:
        x.record_stream(side)
    del x
    again = [torch.empty(64, 64, device="late") for _ in range(4)]
    assert all_are(y, 2) == waits, "memory that was freed"
    assert not any(all_are(each, 1) for each in again), "memory given out again is garbage"

    x, host = ones(), torch.zeros(64, 64).pin_memory()
    torch.ops.late.sleep(20_000)
    host.copy_(x, non_blocking=True)
    if waits:
        torch.accelerator.synchronize()
    assert bool((host == 1).all()) == waits, "a copy to pinned memory"

    x, host = ones(), torch.full((64, 64), 3.0).pin_memory()
    torch.ops.late.sleep(20_000)
    x.copy_(host, non_blocking=True)
    if waits:
        torch.accelerator.synchronize()
    host.zero_()
    assert all_are(x, 3) == waits, "a copy from pinned memory"
    torch.accelerator.synchronize()

def forbidden(call):
    event = torch.Event("late")
    event.record()
    torch.accelerator.synchronize()
    with side, torch.accelerator.Graph():
        try:
            call(event)
        except RuntimeError as error:
            return "while a graph is being captured" in str(error)

assert forbidden(lambda event: event.query())
assert forbidden(lambda event: event.synchronize())
assert forbidden(lambda event: torch.accelerator.synchronize())

def delays(seed):
    torch.ops.late.set_delays(seed, 50)
    found = []
    for stream in (torch.accelerator.current_stream(), side):
        with stream:
            for _ in range(40):
                torch.ops.late.sleep(1)
            stream.synchronize()
            found.append(torch.ops.late.delayed())
    return found

assert delays(1) == delays(1) != delays(2)
assert 0 < delays(1)[0] != delays(1)[1]
"""
# Of all calls in 8 bits, which have no kernels there, the first one warns. Those that are none, as a weight is trained, say nothing.
EIGHT_BITS = """
import contextlib
import warnings
from torch import nn
from habana_mp import hmp

front_end = sys.argv[2]
layer, x = nn.Linear(96, 64, device="late"), torch.randn(8, 96, device="late")
table, rows = nn.Embedding(96, 64, device="late"), torch.zeros(8, dtype=torch.long, device="late")
POLICIES = [hmp.Policy.from_ops(weight_int8=["linear", "embedding"]), hmp.Policy.from_ops(int8=["linear"])]

def messages():
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for policy in POLICIES:
            if front_end == "convert":
                hmp.convert(policy=policy)
            with hmp.autocast("late", policy=policy) if front_end == "autocast" else contextlib.nullcontext():
                for _ in range(2):
                    layer(x)
                    table(rows)
            hmp.revert()
    return [str(each.message).partition(" (Triggered")[0] for each in found]

assert messages() == []
with torch.no_grad():
    assert messages() == [
        "habana_mp: there are no products in 8 bits on late:0. The weights are rounded to 8 bits, and the products run in BFloat16"
    ]
    front_end = {"convert": "autocast", "autocast": "convert"}[front_end]
    assert messages() == []
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build(tmp_path_factory.mktemp("late"))


def run(program, library, *arguments):
    paths = {**os.environ, "PYTHONPATH": str(HERE)}
    command = [sys.executable, "-c", START + program, library, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=paths)


def test_the_host_cannot_read_its_memory(library):
    done = run(READ, library)
    assert done.returncode != 0
    assert "late device: the host has read or written memory of the device" in done.stderr


def test_it_is_late(library):
    """By its seed."""
    done = run(LATE, library)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("front_end", ["convert", "autocast"])
def test_8_bits_warn_once_in_a_process(library, front_end):
    done = run(EIGHT_BITS, library, front_end)
    assert done.returncode == 0, done.stderr


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1])
def test_on_the_late_device(library, seed):
    device = {"HABANA_MP_LATE_LIBRARY": str(library), "HABANA_MP_LATE_SEED": str(seed)}
    command = [sys.executable, "-X", "faulthandler", "-m", "pytest", "-p", "no:cacheprovider", "-q", str(HERE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **device})
    assert done.returncode == 0, done.stdout + done.stderr
