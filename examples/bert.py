"""A tiny BERT of the transformers library learns which chapter of Python's manual a piece of text is from.

    python examples/bert.py

Three trainings from the same start: in float32; under `hmp.autocast` as `torch.autocast` would do it on this machine; and under
`hmp.autocast` by the lists that a Gaudi goes by, where softmax and layer_norm are bfloat16 as well: a look at what they do to the
accuracy, without a Gaudi. The library's code is as it is: all that is added to the loop is the region round the forward pass.
Nothing is downloaded: the model starts from random weights, the text is in every Python (pydoc_data.topics).
"""

from __future__ import annotations

import argparse
import contextlib
import re
import statistics
import sys
import time
from collections import Counter
from contextlib import AbstractContextManager
from pydoc_data.topics import topics

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import BertConfig, BertForSequenceClassification

from habana_mp import hmp

CHAPTERS = "specialnames compound types formatstrings string-methods typesseq debugger typesmapping".split()
LENGTH = 48  # words in a piece
WORDS = 2000  # in the vocabulary
PAD, UNKNOWN = 0, 1
BATCH = 16

console = Console(file=sys.stdout, highlight=False)

Pieces = tuple[torch.Tensor, torch.Tensor]  # words as numbers, chapters as numbers


def pieces() -> tuple[Pieces, Pieces]:
    """The first of every five pieces of a chapter is for the test; those to train on overlap within the other four."""
    chapters = [re.findall(r"[a-z_]+|[^a-z_\s]", topics[name].lower()) for name in CHAPTERS]
    common = Counter(word for words in chapters for word in words).most_common(WORDS - 2)
    number = {word: i for i, (word, _) in enumerate(common, start=2)}
    train, test = [], []
    for label, words in enumerate(chapters):
        numbers = [number.get(word, UNKNOWN) for word in words]
        for start in range(0, len(words), 5 * LENGTH):
            section = numbers[start : start + 5 * LENGTH]
            test.append((section[:LENGTH], label))
            train += [(section[i : i + LENGTH], label) for i in range(LENGTH, len(section) - LENGTH // 2, 5)]
    return tensors(train), tensors(test)


def tensors(labelled: list[tuple[list[int], int]]) -> Pieces:
    texts = [text + [PAD] * (LENGTH - len(text)) for text, _ in labelled]
    return torch.tensor(texts), torch.tensor([label for _, label in labelled])


def tiny_bert() -> BertForSequenceClassification:
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=LENGTH,
        num_labels=len(CHAPTERS),
        pad_token_id=PAD,
        initializer_range=0.05,
    )
    return BertForSequenceClassification(config)


def train(name: str, region: AbstractContextManager[object], data: Pieces, test: Pieces, steps: int) -> dict[str, str]:
    torch.manual_seed(0)
    model = tiny_bert()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = data
    losses, seconds = [], []
    columns = (TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        for _ in progress.track(range(steps), description=name):
            begun = time.perf_counter()
            batch = torch.randint(len(x), (BATCH,))
            with region:
                loss = model(x[batch], attention_mask=x[batch] != PAD, labels=y[batch]).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seconds.append(time.perf_counter() - begun)
            losses.append(loss.item())
    model.eval()
    x, y = test
    with torch.inference_mode(), region:
        right = model(x, attention_mask=x != PAD).logits.argmax(-1) == y
    return {
        "first loss": f"{losses[0]:.4f}",
        "loss, last 20 steps": f"{statistics.fmean(losses[-20:]):.4f}",
        "test accuracy": f"{right.float().mean():.1%}",
        "ms per step": f"{statistics.median(seconds) * 1e3:.1f}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a tiny BERT in float32 and under two policies.")
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps

    data, test = pieces()
    print(f"{len(data[0])} pieces of {LENGTH} words to train on, {len(test[0])} to test, {len(CHAPTERS)} chapters")
    regions = {
        "float32": contextlib.nullcontext(),
        "autocast": hmp.autocast("cpu"),
        "autocast, Gaudi's lists": hmp.autocast("cpu", policy="hpu-autocast"),
    }
    runs = {name: train(name, region, data, test, steps) for name, region in regions.items()}
    print(f"{'':<20}" + "".join(f"{name:>26}" for name in runs))
    for row in runs["float32"]:
        print(f"{row:<20}" + "".join(f"{run[row]:>26}" for run in runs.values()))


if __name__ == "__main__":
    main()
