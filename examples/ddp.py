"""DistributedDataParallel under hmp.convert, on two processes of this machine.

    OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 examples/ddp.py

Each process trains on its half of every batch. Weights and gradients stay float32, so what the processes send one another is float32 as
well, and nothing of DDP has to be told that ops run in bfloat16. Afterwards the first process trains alone on the same
batches, a half after the other, and compares: gradients and losses are the same.
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
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from habana_mp import hmp

BATCH = 128


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    data = load_digits()
    return torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16, torch.tensor(data.target)


def cnn() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.LayerNorm(64 * 4 * 4),
        nn.Linear(64 * 4 * 4, 10),
    )


def train(model: nn.Module, steps: int, parts: list[int], world: int) -> tuple[list[float], list[torch.Tensor]]:
    """The losses and the last gradients. `parts` are those of the `world` parts of each batch that this process trains on."""
    images, labels = digits()
    order = torch.Generator().manual_seed(1)  # the same batches in every process
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    losses = []
    for _ in range(steps):
        batch = torch.randint(len(images), (BATCH,), generator=order)
        optimizer.zero_grad()
        loss = torch.zeros(())
        for part in parts:
            mine = batch.chunk(world)[part]
            part_loss = F.cross_entropy(model(images[mine]), labels[mine]) / len(parts)
            part_loss.backward()
            loss += part_loss.detach()
        with hmp.disable_casts():  # the update stays in float32
            optimizer.step()
        losses.append(loss.item())
    return losses, [parameter.grad for parameter in model.parameters()]


def compare(mean: torch.Tensor, gradients: list[torch.Tensor], steps: int, world: int) -> None:
    alone, gradients_alone = train(cnn(), steps, list(range(world)), world)
    print(f"{'step':>4} {f'{world} processes':>12} {'one process':>12}")
    for step in sorted({0, 1, 2, steps // 2, steps - 1}):
        print(f"{step:4} {mean[step]:12.5f} {alone[step]:12.5f}")
    print(f"gradients are {gradients[0].dtype}, a layer's output is {cnn()(torch.zeros(1, 1, 8, 8)).dtype}")
    torch.testing.assert_close(mean, torch.tensor(alone), rtol=1e-4, atol=1e-5)
    for ours, expected in zip(gradients, gradients_alone, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-6)
    print(f"losses of all {steps} steps and the last gradients are equal, within 1e-4")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on several processes, and compare with one.")
    parser.add_argument("--steps", type=int, default=100)
    steps = parser.parse_args().steps
    if "RANK" not in os.environ:
        sys.exit("run it on two processes: torchrun --nproc-per-node 2 examples/ddp.py")

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    hmp.convert()
    losses, gradients = train(DistributedDataParallel(cnn()), steps, [rank], world)
    mean = torch.tensor(losses)
    dist.all_reduce(mean)  # gloo has no mean
    mean /= world
    if rank == 0:
        compare(mean, gradients, steps, world)
    dist.destroy_process_group()
    time.sleep(0.1)  # gloo's threads may still have tensors: a process that ends at once may abort


if __name__ == "__main__":
    main()
