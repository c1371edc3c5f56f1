"""Instruments leave no memory behind, however often they look (D50): in a process of its own, whose malloc keeps no blocks back."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from habana_mp._torch_private import VERSION

PROGRAM = """
import ctypes
import gc
import sys
import warnings

import torch

from habana_mp import hmp

warnings.simplefilter("ignore")
torch.set_num_threads(1)
x, layer = torch.randn(5, 5, requires_grad=True), torch.nn.LSTM(4, 4)


def product():
    y = torch.mm(x, x)
    y.sum().backward()
    return y


def recurrent():
    layer(torch.ones(3, 2, 4))[0].sum().backward()


def tuned():
    hmp.tune(product, 1e-1, start="balanced", others="lower", cost="numbers")


def measured():
    with hmp.autocast("cpu", policy="balanced"), hmp.report(values=True):
        product()


looks = {
    "compare": lambda: hmp.compare(product, None, "balanced"),
    "find_nonfinite": lambda: hmp.find_nonfinite(recurrent),
    "report": measured,
    "tune": tuned,
}


class Mallinfo(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]


mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Mallinfo


def after(rounds):
    for _ in range(rounds):
        x.grad = None
        layer.zero_grad()
        looks[sys.argv[1]]()
    gc.collect()
    return mallinfo().uordblks


ROUNDS = 25
used = [after(ROUNDS) for _ in range(4)]
print(min(b - a for a, b in zip(used, used[1:])) / ROUNDS)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks malloc of glibc")
@pytest.mark.parametrize("instrument", ["compare", "find_nonfinite", "report", "tune"])
def test_no_round_leaves_memory_behind(instrument: str) -> None:
    kept_back = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, instrument],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **kept_back},
    )
    assert done.returncode == 0, done.stderr
    # Before torch 2.13 a thread keeps the name of each step that an instrument has run: 80 bytes, for up to four steps.
    assert float(done.stdout) < (40 if VERSION >= (2, 13) else 400)  # bytes a round
