"""What torch has for graphs on CUDA alone; test_graphs.py runs on the late device, too."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
from torch import nn

from habana_mp import hmp

BF16 = torch.bfloat16
WIDTH = 512
CLOSE = {"rtol": 2.0**-7, "atol": 2.0**-7}  # a bit of bfloat16: a captured product may sum in another order

pytestmark = pytest.mark.usefixtures("cuda")


@contextlib.contextmanager
def converted():
    hmp.convert(policy="balanced")
    yield lambda **_: contextlib.nullcontext()


@contextlib.contextmanager
def in_regions():
    yield lambda **options: hmp.autocast("cuda", BF16, policy=hmp.Policy.load("balanced"), **options)


FRONT_ENDS = pytest.mark.parametrize("front_end", [converted, in_regions], ids=["convert", "region"])


def net():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)).cuda()


def change(model):
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(-1.5)


# A thread of autograd may still hold the last node of torch's warm-up, which ran on another stream.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match:UserWarning")
@FRONT_ENDS
def test_make_graphed_callables(front_end):
    with front_end() as region:
        model, x = net(), torch.randn(8, WIDTH, device="cuda", requires_grad=True)
        eager = copy.deepcopy(model)
        with region(cache_enabled=False):  # torch asks for it, of its own regions too
            graphed = torch.cuda.make_graphed_callables(model, (x,))
        for _ in range(3):
            with region(cache_enabled=False):
                y, expected = graphed(x), eager(x)
            torch.testing.assert_close(y, expected, **CLOSE)
            for each in (y, expected):
                each.float().square().mean().backward()
            for p, q in zip(model.parameters(), eager.parameters()):
                torch.testing.assert_close(p.grad, q.grad, **CLOSE)
                p.grad = q.grad = None
            change(model)
            change(eager)
