"""Gradient accumulation: each weight is cast once for all the micro-batches between two optimizer steps.

    python examples/gradient_accumulation.py

A training step has 512 images, which go through the model 64 at a time. `torch.autocast` forgets its casts where a region ends, so it
would cast the weights for each of the eight micro-batches. Here `hmp.cache.info()` counts one cast of each weight and seven uses of the
copy (biases are too small to be kept). The optimizer's step changes the weights, so the next step casts them again. The gradients are
those of the whole batch, as near as sums in another order can be in bfloat16.
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from habana_mp import hmp

BATCH, MICRO_BATCH = 512, 64
MICRO_BATCHES = BATCH // MICRO_BATCH


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


def accumulate(net: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """The gradients of the batch, a micro-batch at a time; returns the loss."""
    total = 0.0
    for x, y in zip(images.split(MICRO_BATCH), labels.split(MICRO_BATCH), strict=True):
        with hmp.autocast("cpu"):
            loss = F.cross_entropy(net(x), y) / MICRO_BATCHES
        loss.backward()
        total += loss.item()
    return total


def difference(one: nn.Module, other: nn.Module) -> float:
    """The largest difference of two gradients, as a share of the largest number in them."""
    pairs = [(p.grad, q.grad) for p, q in zip(one.parameters(), other.parameters(), strict=True)]
    return max(((p - q).abs().max() / q.abs().max()).item() for p, q in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description="Accumulate gradients, and count the casts of the weights.")
    parser.add_argument("--steps", type=int, default=20)
    steps = parser.parse_args().steps
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)

    accumulated, whole = model(), model()
    accumulate(accumulated, images[:BATCH], labels[:BATCH])
    with hmp.autocast("cpu"):
        loss = F.cross_entropy(whole(images[:BATCH]), labels[:BATCH])
    loss.backward()
    print(
        f"gradients of {MICRO_BATCHES} micro-batches and of the whole batch differ by {difference(accumulated, whole):.1e}"
    )

    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    hmp.cache.clear()
    print(f"{'step':>4} {'loss':>8}   casts of weights   uses of a copy")
    for step in range(steps):
        before = hmp.cache.info()
        batch = torch.randint(len(images), (BATCH,))
        optimizer.zero_grad()
        loss = accumulate(net, images[batch], labels[batch])
        optimizer.step()
        after = hmp.cache.info()
        casts = after.misses + after.refreshed - before.misses - before.refreshed
        if step < 3 or step == steps - 1:
            print(f"{step:4} {loss:8.4f}   {casts:16}   {after.hits - before.hits:14}")
    print(hmp.cache.info())


if __name__ == "__main__":
    main()
