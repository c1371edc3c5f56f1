"""Memory after thousands of steps is what it was before them.

Nothing is estimated: the C allocator tells the bytes in use, tensors and all of C++ among them, and Python the blocks of its small
objects. 16 bytes that every fourth step leaves behind are seen, and 500 objects in all; the last test leaves them.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import os
import statistics
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import Policy, hmp


class Left(NamedTuple):
    """What steps leave behind: bytes for each, and Python's blocks for a fifth of them."""

    bytes: float
    blocks: float

    def is_nothing(self) -> bool:
        return self.bytes < 3 and self.blocks < 100  # Python's free lists and tables go up and down


class MallInfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


C = ctypes.CDLL(None)

pytestmark = [
    pytest.mark.skipif(not hasattr(C, "mallinfo2"), reason="glibc before 2.33 does not tell"),
    pytest.mark.unsanitized(reason="mallinfo2 knows nothing of the sanitizer's allocator"),
]


def bytes_in_use() -> int:
    C.mallinfo2.restype = MallInfo
    info = C.mallinfo2()
    return info.uordblks + info.hblkhd


def left_by(step: Callable[[], object], steps: int) -> Left:
    """The medians of five rounds: what torch or Python allocates once, however late, shows in one of them.

    Or their means, where those are less: tables of Python that grow and shrink are above zero in most rounds by chance, and not in their sum.
    """
    states = []
    for _ in range(9):  # the first four warm up: Python's caches fill ever more slowly
        for _ in range(steps // 5):
            step()
        gc.collect()
        states.append((bytes_in_use(), sys.getallocatedblocks()))
    rounds = [(after[0] - before[0], after[1] - before[1]) for before, after in itertools.pairwise(states[3:])]
    bytes_, blocks = (
        min(statistics.median(numbers), statistics.mean(numbers)) for numbers in zip(*rounds, strict=True)
    )
    return Left(bytes_ / (steps // 5), blocks)


X, Y = torch.ones(2, 6), torch.tensor([1, 2])


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Linear(4, 4), nn.LayerNorm(4))


def train(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Every kind of rule: lower, fp32, promote, in place and the rest."""
    z = net(X)
    z = torch.cat([z, z.float()]).div(2)
    z = torch.atan2(z, z.bfloat16()) + z
    optimizer.zero_grad()
    F.cross_entropy(z, torch.cat([Y, Y])).backward()
    with hmp.disable_casts():
        optimizer.step()


def training():
    hmp.convert()
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
    return lambda: train(net, optimizer)


def a_new_model_each_time():
    hmp.convert()

    def step():
        net = model()
        train(net, torch.optim.SGD(net.parameters(), lr=1e-3))
        with torch.inference_mode():
            net.eval()(X)

    return step


def inference(mode):
    hmp.convert()
    net = model().eval()

    def step():
        with mode():
            net(X)

    return step


class Subclass(torch.Tensor):
    pass


def overridden_calls():
    hmp.convert()
    x = torch.ones(2, 2).as_subclass(Subclass)

    def step():
        F.linear(x, torch.ones(2, 2))
        x @ x

    return step


def failing_calls():
    hmp.convert()
    x = torch.ones(2, 2)

    def step():
        for call in (lambda: torch.mm(x, 3), lambda: torch.cat([x, x.bfloat16(), 3]), lambda: x @ torch.ones(3, 3)):
            with contextlib.suppress(TypeError, RuntimeError):
                call()

    return step


def logged_calls():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HABANA_MP_LOG", "detail:/dev/null")
        hmp.convert()
    net = model()
    return lambda: net(X)


def threads():
    hmp.convert()
    x = torch.ones(2, 2)

    def calls():
        with hmp.disable_casts():
            torch.mm(x, x)
        torch.mm(x, x)

    def step():
        thread = threading.Thread(target=calls)
        thread.start()
        thread.join()
        # Else glibc makes a new arena for the next one. No Path: it interns its parts, and Python 3.12.1 keeps such strings forever.
        while os.path.exists(f"/proc/self/task/{thread.native_id}"):  # noqa: PTH110
            os.sched_yield()

    return step


def lists():
    """A list, an edit of the built-in one, one that is refused, and the text of a policy."""
    for name, text in {"lower": "mm\nlinear # a\n", "edit": "+softmax\n-relu\n", "bad": "mm\nno op\n"}.items():
        Path(name).write_text(text)

    def step():
        Policy.from_files(lower="lower", fp32="edit")
        Policy.load(str(Policy.load("hmp-o1"))).rule("softmax")
        with contextlib.suppress(ValueError):
            Policy.from_files(lower="bad")

    return step


def conversions():
    Path("lower").write_text("mm\nlinear\n")
    x = torch.ones(2, 2)

    def step():
        hmp.convert(bf16_file_path="lower")
        torch.mm(x, x)
        hmp.revert()

    return step


@pytest.mark.parametrize(
    ("steps", "make"),
    [
        pytest.param(10_000, training, id="training"),
        pytest.param(10_000, lambda: inference(torch.inference_mode), id="inference_mode"),
        pytest.param(2_000, lambda: inference(torch.no_grad), id="no_grad"),
        pytest.param(500, a_new_model_each_time, id="a new model each time"),
        pytest.param(2_000, failing_calls, id="calls that fail"),
        pytest.param(2_000, overridden_calls, id="__torch_function__"),
        pytest.param(1_000, logged_calls, id="log in detail"),
        pytest.param(1_000, threads, id="a new thread each time"),
        pytest.param(200, lists, id="lists read"),
        pytest.param(100, conversions, id="convert and revert"),
    ],
)
def test_steps_leave_nothing_behind(steps, make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    left = left_by(make(), steps)
    assert left.is_nothing(), left


def leak_bytes(kept: list) -> None:
    C.malloc(16)


def leak_an_object(kept: list) -> None:
    kept.append(object())


@pytest.mark.parametrize("leak", [leak_bytes, leak_an_object])
def test_a_leak_is_seen(leak):
    count, kept = itertools.count(), []
    left = left_by(lambda: next(count) % 4 or leak(kept), 4_000)
    assert not left.is_nothing(), left
