"""FSDP2 (torch.distributed.fsdp.fully_shard) under hmp.autocast, on two processes of this machine.

    OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 examples/fsdp2.py

FSDP2 has a MixedPrecisionPolicy of its own, which runs whole modules in bfloat16, their norms and softmaxes as well. Without it, as
here, each process has its half of every weight in float32, gathers the whole when a layer runs, and the lists say op by op what
runs in bfloat16. Afterwards the first process trains alone, unsharded, on the same batches, a half after the other, and compares:
losses and weights are the same.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from habana_mp import hmp

BATCH = 128
POLICY = "hmp"


class Digits(nn.Module):
    """The eight rows of an image are the words of a sentence."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 64)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(64, 10)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        x = self.embed(rows)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def model() -> Digits:
    torch.manual_seed(0)
    return Digits()


def train(net: nn.Module, steps: int, parts: list[int], world: int) -> list[float]:
    """The losses. `parts` are those of the `world` parts of each batch that this process trains on."""
    digits = load_digits()
    rows, labels = torch.tensor(digits.images, dtype=torch.float32) / 16, torch.tensor(digits.target)
    order = torch.Generator().manual_seed(1)  # the same batches in every process
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    losses = []
    for _ in range(steps):
        batch = torch.randint(len(rows), (BATCH,), generator=order)
        optimizer.zero_grad()
        total = 0.0
        for part in parts:
            mine = batch.chunk(world)[part]
            with hmp.autocast("cpu", policy=POLICY):
                loss = F.cross_entropy(net(rows[mine]), labels[mine]) / len(parts)
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
    return losses


def compare(losses: torch.Tensor, weights: list[torch.Tensor], steps: int, world: int) -> None:
    single = model()
    alone = train(single, steps, list(range(world)), world)
    print(f"{'step':>4} {f'{world} processes':>12} {'one process':>12}")
    for step in sorted({0, 1, 2, steps // 2, steps - 1}):
        print(f"{step:4} {losses[step]:12.5f} {alone[step]:12.5f}")
    torch.testing.assert_close(losses, torch.tensor(alone), rtol=1e-3, atol=1e-4)
    for ours, expected in zip(weights, single.parameters(), strict=True):
        torch.testing.assert_close(ours, expected.detach(), rtol=1e-2, atol=1e-4)
    print(f"losses of all {steps} steps are equal within 1e-3, the weights at the end within 1e-2")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a sharded model on several processes, and compare with one.")
    parser.add_argument("--steps", type=int, default=50)
    steps = parser.parse_args().steps
    if "RANK" not in os.environ:
        sys.exit("run it on two processes: torchrun --nproc-per-node 2 examples/fsdp2.py")

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    sharded = model()
    mesh = init_device_mesh("cpu", (world,))
    for layer in sharded.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    held = sum(p.to_local().numel() for p in sharded.parameters() if isinstance(p, DTensor))
    losses = torch.tensor(train(sharded, steps, [rank], world))
    dist.all_reduce(losses)  # gloo has no mean
    losses /= world
    weights = [p.full_tensor().detach() for p in sharded.parameters() if isinstance(p, DTensor)]
    print(f"process {rank} holds {held:,} of {sum(w.numel() for w in weights):,} numbers, in {weights[0].dtype}")
    if rank == 0:
        compare(losses, weights, steps, world)
    dist.destroy_process_group()
    time.sleep(0.1)  # gloo's threads may still have tensors: a process that ends at once may abort


if __name__ == "__main__":
    main()
