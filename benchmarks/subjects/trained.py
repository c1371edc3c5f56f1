"""Trained models that packages carry, as they are served: their inputs, and what an error of their outputs is in the units of the task."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pydoc_data.topics import topics

import torch
import transformers
from subjects.carried import Speech, crepe, minilm
from torch import nn
from torch.nn import functional

from habana_mp._evidence.tune.runs import relative_error


@dataclass(frozen=True)
class Trained:
    """``make`` gives the model, ``batch`` its input by a number. ``beside`` compares outputs in the units of the task, (found, exact)."""

    name: str
    make: Callable[[], nn.Module]
    batch: Callable[[int], torch.Tensor]
    beside_name: str = ""
    beside: Callable[[torch.Tensor, torch.Tensor], float] = relative_error

    @functools.cached_property
    def model(self) -> nn.Module:
        return self.make().eval()

    @functools.cached_property
    def x(self) -> torch.Tensor:
        return self.batch(0)


class Sentences(nn.Module):
    """A direction for each sentence, as the model was trained for: the mean over its words, of length 1."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        mask = (words != 0).to(torch.long)
        hidden = self.model(input_ids=words, attention_mask=mask).last_hidden_state
        return functional.normalize((hidden * mask[..., None]).sum(1), dim=-1)


def cosine(found: torch.Tensor, exact: torch.Tensor) -> float:
    return functional.cosine_similarity(found, exact).min().item()


def cents(probabilities: torch.Tensor) -> torch.Tensor:
    """The pitch of each frame: the mean of the nine bins around the most probable one. A bin has 20 cents."""
    bins = torch.arange(probabilities.shape[-1])
    near = (bins - probabilities.argmax(-1, keepdim=True)).abs() <= 4
    weights = probabilities * near
    return 20 * (weights * bins).sum(-1) / weights.sum(-1)


def most_cents(found: torch.Tensor, exact: torch.Tensor) -> float:
    return (cents(found) - cents(exact)).abs().max().item()


def of_minilm() -> Trained:
    _, folder = minilm()
    paragraphs = [part for name in sorted(topics) for part in re.split(r"\n\s*\n", topics[name]) if len(part) > 200]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def passages(number: int) -> torch.Tensor:
        texts = paragraphs[number::100][:4]
        words: torch.Tensor = tokenizer(texts, return_tensors="pt", padding=True, truncation=True, max_length=24)[
            "input_ids"
        ]
        return words

    return Trained("MiniLM", lambda: Sentences(minilm()[0]), passages, "cosine with float32, smallest", cosine)


def of_crepe() -> Trained:
    subject = crepe("tiny")
    return Trained(subject.name, lambda: crepe("tiny").model, subject.batch, "pitch off by, cents, largest", most_cents)


def frames(number: int) -> torch.Tensor:
    return torch.randn(4, 40, 50, generator=torch.Generator().manual_seed(number))


def trained(quick: bool) -> Iterator[Trained]:
    """One after another."""
    if quick:
        yield Trained("speech", Speech, frames, "error, again")
        return
    yield of_minilm()
    yield of_crepe()
