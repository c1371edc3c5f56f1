"""Weights that a collective writes to, in a process group of one process, and graphs that are captured beside one."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from capture import capture
from torch import nn

BF16 = torch.bfloat16
WIDTH = 128
CLOSE = {"rtol": 2.0**-7, "atol": 2.0**-7}  # a bit of bfloat16: products may sum in another order


@pytest.fixture
def _group(accelerator):
    backend = {"cuda": "nccl"}.get(accelerator, accelerator)
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    yield
    torch.accelerator.synchronize()
    dist.destroy_process_group()


pytestmark = pytest.mark.usefixtures("_group")


def product(x, p):
    """In bfloat16, computed on the host."""
    return F.linear(x.cpu().to(BF16), p.detach().cpu().to(BF16)).float()


@contextlib.contextmanager
def late(device):
    """A collective that is called inside begins after 20 ms, and the current stream does not wait for that."""
    with torch.Stream(device):
        if device == "cuda":
            torch.cuda._sleep(40_000_000)
        else:
            torch.ops.late.sleep(20_000)
        yield


@pytest.fixture
def p(accelerator):
    return nn.Parameter(torch.randn(WIDTH, WIDTH, device=accelerator))


@pytest.fixture
def x(accelerator):
    return torch.randn(4, WIDTH, device=accelerator)


def test_what_one_writes_is_seen(accelerator, front_end, p, x):
    """What is cast while it goes on is not used afterwards."""
    region, new = front_end(), torch.randn_like(p)
    torch.accelerator.synchronize()
    with torch.no_grad():
        with region():
            F.linear(x, p)
        with late(accelerator):
            work = dist.all_gather([p], new, async_op=True)
        with region():
            F.linear(x, p)
        work.wait()
        with region():
            y = F.linear(x, p)
    torch.testing.assert_close(y.cpu().float(), product(x, new), **CLOSE)


def test_a_capture_while_one_goes_on(accelerator, front_end, p, x):
    """It may not be asked whether it is complete then."""
    region, sum_of_all = front_end(), torch.ones(8, device=accelerator)

    def infer():
        with torch.no_grad(), region():
            return F.linear(x, p)

    infer()
    with late(accelerator):
        work = dist.all_reduce(sum_of_all, async_op=True)

    graph, y = capture(accelerator, infer, warm_ups=0)
    work.wait()
    graph.replay()
    torch.testing.assert_close(y.cpu().float(), product(x, p), **CLOSE)


def test_a_captured_one(accelerator, front_end, x):
    """Each replay writes, and eager code sees it."""
    region, p = front_end(), nn.Parameter(torch.ones(WIDTH, WIDTH, device=accelerator))

    def write():
        with torch.no_grad():
            dist.all_reduce(p)
            p.add_(1)
            with region():
                return F.linear(x, p)

    graph, y = capture(accelerator, write, warm_ups=1)
    for value in (3, 4):
        graph.replay()
        with torch.no_grad(), region():
            eager = F.linear(x, p)
        expected = product(x, torch.full((WIDTH, WIDTH), float(value)))
        for found in (y, eager):
            torch.testing.assert_close(found.cpu().float(), expected, **CLOSE)
