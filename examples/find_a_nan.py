"""A model that trains in float32 and gives NaN in mixed precision: which op is it, and one edit of the policy that mends it.

    python examples/find_a_nan.py

The model tells code from prose, a line of Python's manual at a time. Lines are of different lengths, so padding is masked in the
attention as many models do it: `(1 - mask) * finfo(float32).min` is added to the scores. Float32 holds that number. In bfloat16 it
rounds to -inf, and a line that is all padding (the manual has empty ones) gets a softmax over nothing but -inf: NaN.

Somebody who does not know that finds it in three steps, all below:
1. the loss under the policy is NaN;
2. `hmp.find_nonfinite` runs that step and names the op that made the first number that is not finite, its line and what it was given;
3. `Policy.with_edits` moves this one op to float32, and the training goes on.
"""

from __future__ import annotations

import argparse
import functools
import math
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn import functional as F

from habana_mp import hmp

LENGTH = 48  # of a line, in bytes
WIDTH, HEADS = 64, 4
BATCH = 32


class Reader(nn.Module):
    """A line as bytes, 0 is padding; code or prose."""

    def __init__(self) -> None:
        super().__init__()
        self.byte, self.place = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.hidden, self.head = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, 2)

    def forward(self, line: torch.Tensor) -> torch.Tensor:
        mask = (line != 0).float()
        x = self.norm1(self.byte(line) + self.place(torch.arange(LENGTH)))
        q, k, v = self.qkv(x).view(len(line), LENGTH, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(WIDTH // HEADS)
        padding = (1 - mask) * torch.finfo(torch.float32).min
        scores = scores + padding[:, None, None, :]
        seen = torch.matmul(F.softmax(scores, dim=-1), v).transpose(1, 2).flatten(2)
        return self.head(F.relu(self.hidden(self.norm2(x + seen).mean(1))))


@functools.cache
def lines() -> tuple[torch.Tensor, torch.Tensor]:
    """Lines that are indented are code."""
    found = "\n".join(topics.values()).split("\n")
    texts = [line.strip().encode("ascii", "replace")[:LENGTH] for line in found]
    x = torch.tensor([list(text.ljust(LENGTH, b"\0")) for text in texts])
    return x, torch.tensor([int(line.startswith("     ")) for line in found])


class Training:
    """The same model and the same batches, in float32 or under convert by a policy."""

    def __init__(self, policy: hmp.Policy | None) -> None:
        torch.manual_seed(0)
        self.policy = policy
        self.model, (self.x, self.y) = Reader(), lines()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        self.losses: list[float] = []

    def step(self) -> None:
        if self.policy is not None:
            hmp.convert(policy=self.policy)
        try:
            batch = torch.randint(len(self.x), (BATCH,))
            loss = F.cross_entropy(self.model(self.x[batch]), self.y[batch])
            self.optimizer.zero_grad()
            loss.backward()
        finally:
            hmp.revert()
        self.optimizer.step()
        self.losses.append(loss.item())

    def run(self, steps: int) -> float:
        """The last loss; it stops at a NaN."""
        while len(self.losses) < steps and not (self.losses and math.isnan(self.losses[-1])):
            self.step()
        return self.losses[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description="Find the op that gives NaN, and mend the policy.")
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    policy = hmp.Policy.load("hmp")

    print(f"1. after {steps} steps the loss is {Training(None).run(steps):.4f} in float32")
    lower = Training(policy)
    print(f"   under the policy {policy.name} it is {lower.run(steps)} at step {len(lower.losses) - 1}\n")

    training = Training(policy)
    for _ in lower.losses[1:]:  # up to the step before
        training.step()
    found = hmp.find_nonfinite(training.step)
    print("2. the first op whose result is not finite:")
    print("   " + str(found).replace("\n", "\n   "))
    low = torch.tensor(torch.finfo(torch.float32).min).to(policy.low_dtype)
    print(f"   finfo(float32).min is {low} in {policy.low_dtype}\n")

    mended = Training(policy.with_edits(found.edit)).run(steps)
    print(f"3. with_edits({found.edit!r}): after {steps} steps the loss is {mended:.4f}")


if __name__ == "__main__":
    main()
