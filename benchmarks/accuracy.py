"""Trainings under policies beside float32: a CNN on digits, a GPT and a BERT on the text of Python's manual, three seeds each."""

from __future__ import annotations

import contextlib
import statistics
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from harness.command import run
from harness.pages import ACCURACY_HEAD, Report
from harness.rows import Row, table
from torch import nn
from torch.nn import functional

from habana_mp import hmp
from habana_mp._evidence.tune.runs import relative_error

if TYPE_CHECKING:
    from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
import bert
import digits
import gpt

SEEDS = 3
POLICIES = ("float32", "torch.autocast", "hmp", "balanced", "tuned")
COLOURS = {
    "float32": "#7b838c",
    "torch.autocast": "#e69f00",
    "hmp": "#b4366e",
    "balanced": "#0072b2",
    "tuned": "#009e73",
}


@dataclass(frozen=True)
class Task:
    """``make`` gives a model; ``batch`` an input and its targets, drawn by torch's random numbers; ``held`` data that is not trained on."""

    name: str
    make: Callable[[], nn.Module]
    batch: Callable[[], tuple[torch.Tensor, torch.Tensor]]
    held: tuple[torch.Tensor, torch.Tensor]
    rate: float
    steps: int


@dataclass
class Training:
    losses: list[float] = field(default_factory=list)
    held_loss: float = 0.0
    accuracy: float = 0.0


def logits_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    found: Any = model(x)
    return (found if isinstance(found, torch.Tensor) else found.logits).flatten(0, -2)


def of_digits() -> Task:
    images, labels = digits.digits()
    last = -digits.TEST_IMAGES
    train, targets = images[:last], labels[:last]

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        drawn = torch.randint(len(train), (digits.BATCH,))
        return train[drawn], targets[drawn]

    return Task("CNN on digits", digits.SmallCNN, batch, (images[last:], labels[last:]), 1e-3, 200)


def of_gpt() -> Task:
    text, words = gpt.manual()
    split = len(text) * 9 // 10
    places = torch.arange(gpt.CONTEXT + 1)

    def window(starts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = text[starts[:, None] + places]
        return found[:, :-1], found[:, 1:].flatten()

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        return window(torch.randint(split - gpt.CONTEXT, (gpt.BATCH,)))

    held = window(torch.arange(split, len(text) - gpt.CONTEXT - 1, 4 * gpt.CONTEXT)[:64])
    return Task("GPT on a manual", lambda: gpt.GPT(len(words)), batch, held, 2e-3, 250)


def of_bert() -> Task:
    (train, targets), held = bert.pieces()
    config = transformers.BertConfig(
        vocab_size=bert.WORDS,
        hidden_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=192,
        num_labels=len(bert.CHAPTERS),
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        drawn = torch.randint(len(train), (bert.BATCH,))
        return train[drawn], targets[drawn]

    return Task("BERT on a manual", lambda: transformers.BertForSequenceClassification(config), batch, held, 5e-4, 200)


def region_of(name: str, tuned: hmp.Policy) -> Callable[[], Any]:
    if name == "float32":
        return contextlib.nullcontext
    if name == "torch.autocast":
        return lambda: torch.autocast("cpu")
    policy = tuned if name == "tuned" else hmp.Policy.load(name)
    return lambda: hmp.autocast("cpu", policy=policy)


def tuned(task: Task) -> hmp.Tuned:
    """Within half of the error that torch.autocast makes at the start."""
    torch.manual_seed(0)
    model, (x, _) = task.make().eval(), task.batch()
    with torch.no_grad():
        exact = logits_of(model, x)
        with torch.autocast("cpu"):
            budget = relative_error(exact, logits_of(model, x).float()) / 2
    return hmp.tune(lambda: logits_of(model, x), budget, start="balanced", others="start")


def train(task: Task, region: Callable[[], Any], seed: int, steps: int) -> Training:
    torch.manual_seed(seed)
    model, done = task.make(), Training()
    optimizer = torch.optim.AdamW(model.parameters(), lr=task.rate)
    for _ in range(steps):
        x, target = task.batch()
        with region():
            loss = functional.cross_entropy(logits_of(model, x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done.losses.append(loss.item())
    model.eval()
    with torch.no_grad(), region():
        logits = logits_of(model, task.held[0]).float()
    done.held_loss = functional.cross_entropy(logits, task.held[1]).item()
    done.accuracy = (logits.argmax(-1) == task.held[1]).float().mean().item()
    return done


def curves(runs: dict[str, list[Training]], name: str) -> Figure:
    """Smoothed losses, and beside them how far each is from float32."""
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    means = {
        policy: _smooth([statistics.fmean(step) for step in zip(*(each.losses for each in trained), strict=True)])
        for policy, trained in runs.items()
    }
    for policy, losses in means.items():
        wide = policy == "float32"
        left.plot(losses, color=COLOURS[policy], linewidth=4 if wide else 1.2, alpha=0.5 if wide else 1, label=policy)
        if not wide:
            apart = [a - b for a, b in zip(losses, means["float32"], strict=True)]
            right.plot(apart, color=COLOURS[policy], linewidth=1.2)
    left.set_title(f"{name}: loss", loc="left")
    right.set_title("difference to float32", loc="left")
    for axes in (left, right):
        axes.set_xlabel("step")
    left.legend()
    return figure


def _smooth(values: list[float], width: int = 20) -> list[float]:
    return [statistics.fmean(values[max(0, i + 1 - width) : i + 1]) for i in range(len(values))]


def measure(quick: bool) -> Report:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    rows, sections, pictures = [], [], {}
    for number, make in enumerate((of_digits, of_gpt, of_bert)[: 1 if quick else None]):
        task = make()
        found = tuned(task)
        steps = 3 if quick else task.steps
        runs: dict[str, list[Training]] = {
            name: [train(task, region_of(name, found.policy), seed, steps) for seed in range(1 if quick else SEEDS)]
            for name in POLICIES
        }
        lines = []
        for name, trained in runs.items():
            losses = [each.held_loss for each in trained]
            apart = statistics.fmean(a - b.held_loss for a, b in zip(losses, runs["float32"], strict=True))
            lines.append(
                [
                    name,
                    f"{statistics.fmean(losses):.4f}",
                    f"{apart:+.4f}",
                    f"{max(losses) - min(losses):.4f}",
                    f"{statistics.fmean(each.accuracy for each in trained):.1%}",
                ]
            )
            if name != "float32":
                rows.append(Row(f"{task.name}, {name}: loss on held data difference to float32", apart, ""))
        picture = f"accuracy-{number + 1}"
        pictures[picture] = lambda runs=runs, name=task.name: curves(runs, name)
        wide = ", ".join(part.name for part in found.parts if part.list == "fp32") or "none"
        head = ["lists", "loss on held data", "difference to float32", "between seeds", "accuracy"]
        sections.append(
            f"### {task.name}\n\n{steps} steps, {len(runs['float32'])} seeds. `hmp.tune` started from `balanced` and moved to float32: {wide}.\n\n"
            f"{table(head, lines)}\n\n![Losses of {task.name}]({picture}.svg)"
        )
    return Report("Losses", rows, "\n\n".join(sections), pictures, page="accuracy", head=ACCURACY_HEAD)


if __name__ == "__main__":
    run(__doc__, measure)
