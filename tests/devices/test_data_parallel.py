"""DistributedDataParallel and FSDP2 with a scaler, on as many ranks as there are devices, at most two. They train as one process does on all of the batch."""

from __future__ import annotations

import contextlib
import copy
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from late_device import register
from ranks import join, leave, run_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from habana_mp import hmp

BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl", "late": "cpu:gloo,late:late"}
FP16 = torch.float16
WIDTH, STEPS = 128, 4


def sharded(model):
    mesh = init_device_mesh(next(model.parameters()).device.type, (dist.get_world_size(),))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


WAYS = {"ddp": DistributedDataParallel, "fsdp2": sharded}
POLICY = hmp.Policy.load("torch-cuda").with_low_dtype(FP16)


REGIONS = {
    "convert": lambda _: contextlib.nullcontext(),
    "region": lambda device: hmp.autocast(device, FP16, policy=POLICY),
    "torch": lambda device: torch.autocast(device, FP16),
}


def whole(p):
    return p.full_tensor() if hasattr(p, "full_tensor") else p


def train(model, batches, device, front_end, infinite):
    """Steps, in one of which the loss of some rank is infinite: nobody makes it, and the scale falls."""
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), hmp.GradScaler(device, init_scale=2.0**10)
    region = REGIONS[front_end](device)
    for number, batch in enumerate(batches):
        with region:
            y = model(batch)
        assert y.dtype == FP16
        loss = F.mse_loss(y.float(), batch)
        scaler.scale(loss * float("inf") if infinite and number == 1 else loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert scaler.get_scale() == 2.0**9


def test_with_a_scaler(device, tmp_path):
    world = min(2, torch.cuda.device_count()) if device == "cuda" else 2
    for rank in run_ranks(__file__, tmp_path, device, world=world):
        assert rank.status == 0, rank.err
        assert rank.out.splitlines() == [f"{front_end}: {way}" for front_end in REGIONS for way in WAYS]


def main(folder, device):
    if device == "late":
        register(os.environ["HABANA_MP_LATE_LIBRARY"], int(os.environ["HABANA_MP_LATE_SEED"]))
    rank = join(folder, BACKENDS[device])
    world = dist.get_world_size()
    if device != "cpu":
        torch.accelerator.set_device_index(rank)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)).to(device)
    batches = [torch.randn(8, WIDTH).to(device) for _ in range(STEPS)]
    for front_end in REGIONS:
        if front_end == "convert":
            hmp.convert(policy=POLICY)
        expected = copy.deepcopy(model)
        train(expected, batches, device, front_end, infinite=True)
        for name, wrap in WAYS.items():
            parallel = wrap(copy.deepcopy(model))
            # The last rank alone has an infinite loss: all skip the step.
            train(parallel, [batch[rank::world] for batch in batches], device, front_end, infinite=rank == world - 1)
            for p, q in zip(parallel.parameters(), expected.parameters()):
                torch.testing.assert_close(whole(p.detach()), q.detach(), rtol=1e-3, atol=1e-4)
            print(f"{front_end}: {name}")
        hmp.revert()
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
