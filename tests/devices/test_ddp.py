"""DistributedDataParallel of one process on one device: gloo on the CPU, NCCL on CUDA. It trains as the model without it does."""

from __future__ import annotations

import copy
import os
import sys

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from ranks import join, leave, run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from habana_mp import hmp

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
WIDTH = 128


@pytest.mark.skipif("HABANA_MP_LATE_LIBRARY" in os.environ, reason="the late device has no process group")
def test_one_process(device, tmp_path):
    (rank,) = run_ranks(__file__, tmp_path, device, world=1)
    assert rank.status == 0, rank.err
    assert rank.out.split() == {"cpu": ["trained", "reduced"], "cuda": ["trained", "reduced", "captured"]}[device]


def trains_as_without_it(device):
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)).to(device)
    models = model, DistributedDataParallel(copy.deepcopy(model))
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in models]
    for _ in range(3):
        x = torch.randn(8, WIDTH, device=device)
        for each, optimizer in zip(models, optimizers):
            y = each(x)
            assert y.dtype == torch.bfloat16
            y.float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    for p, q in zip(models[0].parameters(), models[1].module.parameters()):
        torch.testing.assert_close(p, q)


def sees_what_a_collective_writes(device):
    """While it goes on, and after it."""
    p, x = nn.Parameter(torch.randn(WIDTH, WIDTH, device=device)), torch.randn(4, WIDTH, device=device)
    with torch.inference_mode():
        F.linear(x, p)
    work = dist.all_reduce(p.detach(), async_op=True)
    with torch.inference_mode():
        F.linear(x, p)
        work.wait()
        with hmp.disable_casts():
            expected = F.linear(x.to(torch.bfloat16), p.to(torch.bfloat16))
        assert torch.equal(F.linear(x, p), expected)


def captures_a_collective():
    """Its Work may not be asked whether it is complete while a graph is being captured."""
    p, x = nn.Parameter(torch.ones(WIDTH, WIDTH, device="cuda")), torch.ones(4, WIDTH, device="cuda")

    def call():
        with torch.no_grad():
            dist.all_reduce(p)
            p.add_(1)
            return F.linear(x, p)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = call()
    for value in (3, 4):
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(p, torch.full_like(p, value))
        assert torch.equal(y, torch.full_like(y, value * WIDTH))
        with torch.no_grad():
            assert torch.equal(F.linear(x, p), y)


def main(folder, device):
    join(folder, BACKENDS[device], device_id=torch.device("cuda", 0) if device == "cuda" else None)
    torch.manual_seed(0)
    hmp.convert()
    trains_as_without_it(device)
    print("trained")
    sees_what_a_collective_writes(device)
    print("reduced")
    if device == "cuda":
        captures_a_collective()
        print("captured")
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
