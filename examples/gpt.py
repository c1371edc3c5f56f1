"""A small GPT that learns the English of Python's own manual, in plain PyTorch.

    python examples/gpt.py                  one training; nothing here touches a dtype
    python examples/gpt.py --policy hmp     three from the same start: float32, hmp.convert, hmp.autocast; losses side by side
    habana-mp report examples/gpt.py --steps 20
                                            the first one under convert: which op was cast how often, why, and what it cost

The text is that of `help("if")` and its like (pydoc_data.topics, in every Python), cut into words. Only `main` knows of hmp.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pydoc_data.topics import topics

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn
from torch.nn import functional as F

WORDS = 1500  # in the vocabulary; the others are the first one, UNKNOWN
UNKNOWN = "_"
CONTEXT = 64
WIDTH, HEADS, BLOCKS = 128, 4, 2
BATCH = 16

console = Console(file=sys.stdout, highlight=False)


class Attention(nn.Module):
    """Written out, so that each op is one that a list can name."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("future", torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(WIDTH // HEADS)
        scores = scores.masked_fill(self.future[:length, :length], float("-inf"))
        seen = torch.matmul(F.softmax(scores, dim=-1), v)
        return self.out(seen.transpose(1, 2).reshape(batch, length, WIDTH))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, words: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(words, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        for embedding in (self.token, self.position):
            nn.init.normal_(embedding.weight, std=0.1)
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def manual() -> tuple[torch.Tensor, list[str]]:
    """The whole text as numbers of words, and the words."""
    text = " ".join(topics.values()).lower()
    found = re.findall(r"[a-z]+(?:'[a-z]+)?|[.,:;()]", text)
    words = [UNKNOWN, *(word for word, _ in Counter(found).most_common(WORDS - 1))]
    number = {word: i for i, word in enumerate(words)}
    return torch.tensor([number.get(word, 0) for word in found]), words


@dataclass
class Run:
    model: GPT
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def train(
    name: str,
    text: torch.Tensor,
    words: list[str],
    steps: int,
    precision: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
) -> Run:
    """A training loop as anybody has one; `precision` is a region round the forward pass, by default none."""
    torch.manual_seed(0)
    run = Run(GPT(len(words)))
    optimizer = torch.optim.AdamW(run.model.parameters(), lr=5e-3)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 50, 1 - step / steps))
    columns = (
        TextColumn("{task.description:<14}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(name, total=steps, loss=math.nan)
        for _ in range(steps):
            begun = time.perf_counter()
            starts = torch.randint(len(text) - CONTEXT, (BATCH, 1))
            window = text[starts + torch.arange(CONTEXT + 1)]
            with precision():
                scores = run.model(window[:, :-1])
                loss = F.cross_entropy(scores.flatten(0, 1), window[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rate.step()
            run.seconds.append(time.perf_counter() - begun)
            run.losses.append(loss.item())
            progress.update(task, advance=1, loss=run.losses[-1])
    return run


@torch.inference_mode()
def write(model: GPT, words: list[str], start: str, length: int) -> str:
    """Text of the model's own, a word at a time, each drawn by its probability."""
    torch.manual_seed(1)
    tokens = [words.index(word) for word in start.split()]
    for _ in range(length):
        scores = model(torch.tensor([tokens[-CONTEXT:]]))[0, -1].float()
        scores[0] = -math.inf  # never UNKNOWN
        tokens.append(int(torch.multinomial(F.softmax(scores / 0.7, dim=-1), 1)))
    return re.sub(r" ([.,:;)])|(\() ", r"\1\2", " ".join(words[token] for token in tokens))


def show(runs: dict[str, Run], steps: int) -> None:
    """The losses at ten places, each the mean of the steps since the one before."""
    print("loss at step" + "".join(f"{name:>14}" for name in runs))
    width = max(1, steps // 10)
    for end in range(width, steps + 1, width):
        row = [statistics.fmean(run.losses[end - width : end]) for run in runs.values()]
        print(f"{end:12}" + "".join(f"{loss:14.4f}" for loss in row))
    print("ms per step " + "".join(f"{statistics.median(run.seconds) * 1e3:14.1f}" for run in runs.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small GPT on the text of Python's manual.")
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--policy", help="compare float32 with hmp.convert and hmp.autocast by this policy, as hmp")
    args = parser.parse_args()

    text, words = manual()
    print(f"{len(text):,} words of text, {len(words):,} of them different; ", end="")
    print(f"{sum(p.numel() for p in GPT(len(words)).parameters()):,} parameters")
    if args.policy is None:
        runs = {"training": train("training", text, words, args.steps)}
    else:
        from habana_mp import hmp

        policy = hmp.Policy.load(args.policy)
        runs = {"float32": train("float32", text, words, args.steps)}
        hmp.convert(policy=policy)
        runs["hmp.convert"] = train("hmp.convert", text, words, args.steps)
        hmp.revert()
        region = hmp.autocast("cpu", policy=policy)
        runs["hmp.autocast"] = train("hmp.autocast", text, words, args.steps, lambda: region)
    show(runs, args.steps)
    for name, run in runs.items():
        print(f"\n{name}: " + write(run.model, words, "the value of", 24))


if __name__ == "__main__":
    main()
