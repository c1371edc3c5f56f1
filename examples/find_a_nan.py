"""A model that trains in float32 and gives NaN in mixed precision: which op is it, and one edit of the policy that mends it.

    python examples/find_a_nan.py

The model tells code from prose, a line of Python's manual at a time. Lines are of different lengths, so padding is masked in the
attention as many models do it: `(1 - mask) * finfo(float32).min` is added to the scores. Float32 holds that number. In bfloat16 it
rounds to -inf, and a line that is all padding (the manual has empty ones) gets a softmax over nothing but -inf: NaN.

Somebody who does not know that finds it in four steps, all below:
1. the loss under the policy is NaN;
2. each op of the lower list in turn goes to float32: with one of them the loss is a number again;
3. `hmp.report` says where the model calls that op and which line of which list decides about it;
4. `Policy.with_edits` moves this one op, and the training goes on.
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


def train(policy: hmp.Policy | None, steps: int) -> list[float]:
    """The losses in float32, or under convert by a policy; it stops at a NaN."""
    torch.manual_seed(0)
    model, (x, y) = Reader(), lines()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses: list[float] = []
    if policy is not None:
        hmp.convert(policy=policy)
    try:
        while len(losses) < steps and not (losses and math.isnan(losses[-1])):
            batch = torch.randint(len(x), (BATCH,))
            loss = F.cross_entropy(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            with hmp.disable_casts():
                optimizer.step()
            losses.append(loss.item())
    finally:
        hmp.revert()
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description="Find the op that gives NaN, and mend the policy.")
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    policy = hmp.Policy.load("hmp")

    float32 = train(None, steps)
    print(f"1. after {steps} steps the loss is {float32[-1]:.4f} in float32")
    lower = train(policy, steps)
    print(f"   under the policy {policy.name} it is {lower[-1]} at step {len(lower) - 1}\n")

    print(f"2. the same first steps, with one op of the {len(policy.lists['lower'])} in the lower list in float32:")
    culprits = []
    for op in policy.lists["lower"]:
        loss = train(policy.with_edits(f"+{op}:fp32"), len(lower))[-1]
        if not math.isnan(loss):
            culprits.append(op)
            print(f"   {op}: the loss is {loss:.4f}")
    print("   with any other it stays NaN\n")

    print("3. where, and why:")
    with hmp.report() as report:
        train(policy, 1)
    for row in report.to_dict()["rows"]:
        if row["op"] in culprits and row["casts"]:
            print(f"   {row['op']} at {row['source']}, from {row['dtypes'][0]} to {row['runs_in'][0]}")
            print(f"   {row['rule']}")
    low = torch.tensor(torch.finfo(torch.float32).min).to(policy.low_dtype)
    print(f"   finfo(float32).min is {low} in {policy.low_dtype}\n")

    edits = [f"+{op}:fp32" for op in culprits]
    mended = train(policy.with_edits(*edits), steps)
    print(f"4. with_edits({', '.join(map(repr, edits))}): after {steps} steps the loss is {mended[-1]:.4f}")


if __name__ == "__main__":
    main()
