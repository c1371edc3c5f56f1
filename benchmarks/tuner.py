"""hmp.tune: planted faults, against every choice that there is, against torch.autocast and other methods; and the preset balanced."""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from harness.command import run
from harness.pages import Report
from harness.rows import Row, table, table_of
from harness.timing import take_turns
from subjects.planted import FAULTY, INNOCENT, Planted
from subjects.rivals import RIVALS, Trial
from torch.nn import functional

from habana_mp import hmp

sys.path.insert(0, str(Path(__file__).parent.parent))
from zoo.small_models import MODELS, Trained, trained

SIZE = 256
LARGE = ("CNN", "GPT", "BERT", "ViT", "llama")
MOST_EDITS = 3
EVERY_OP: dict[str, Any] = {"start": "hmp", "others": "lower"}  # every op is searched, not an edit of a preset


# Planted faults


def planted(quick: bool) -> list[Row]:
    found = total = 0
    innocents = []
    for k in (1, 3, 5):
        for seed in range(1 if quick else 20):
            drawn = random.Random(100 * k + seed)
            faults = drawn.sample([*FAULTY], k)
            torch.manual_seed(seed)
            model, x = Planted(faults, drawn), torch.randn(64, 64)
            tuned = hmp.tune(lambda model=model, x=x: model(x), needed(model, x, faults), **EVERY_OP, cost="numbers")
            wide = {part.part.op for part in tuned.parts if part.list == "fp32"}
            total += 1
            found += wide >= {*faults}
            innocents.append(len(wide - {*faults}))
    return [
        Row(f"planted ops that need float32, 1, 3 or 5 in a model: all found, of {total}", float(found), ""),
        Row("innocent ops in float32, median", float(statistics.median(innocents)), ""),
    ]


def needed(model: Planted, x: torch.Tensor, faults: list[str]) -> float:
    """A budget that the innocent ops keep in bfloat16, and no fault does."""
    low = [kind for kind in [*INNOCENT, "linear", "add", "mul"] if kind not in faults]
    policy = hmp.Policy.from_ops(low, rest="fp32", name="innocent")
    with torch.no_grad():
        exact = model(x)
        with hmp.autocast("cpu", policy=policy):
            ran = model(x)
    return 1.5 * ((ran - exact).norm() / exact.norm()).item()


# Real models


def regions(policies: dict[str, hmp.Policy]) -> dict[str, Callable[[], Any]]:
    made: dict[str, Callable[[], Any]] = {
        name: (lambda policy=policy: hmp.autocast("cpu", policy=policy)) for name, policy in policies.items()
    }
    return {"float32": contextlib.nullcontext, "autocast": lambda: torch.autocast("cpu"), **made}


def errors_and_times(made: Trained, policies: dict[str, hmp.Policy], rounds: int) -> dict[str, tuple[float, float]]:
    """Of inference: each policy with float32, torch.autocast and the model held in bfloat16 beside it, in turns."""
    found: dict[str, torch.Tensor] = {}

    def visit(name: str, region: Callable[[], Any]) -> Callable[[], float]:
        def once() -> float:
            with torch.no_grad(), region():
                begin = time.perf_counter()
                found[name] = made.logits()
                return time.perf_counter() - begin

        return once

    held = bf16_of(made)

    def in_bfloat16() -> float:
        with torch.no_grad():
            begin = time.perf_counter()
            found["bf16"] = held()
            return time.perf_counter() - begin

    visits = {name: visit(name, region) for name, region in regions(policies).items()}
    with contextlib.suppress(RuntimeError):  # a UNet computes the embedding of its time in float32
        in_bfloat16()
        visits["bf16"] = in_bfloat16
    best = take_turns(visits, rounds)
    exact = found["float32"].double()
    return {name: (((found[name].double() - exact).norm() / exact.norm()).item(), best[name]) for name in best}


def bf16_of(made: Trained) -> Callable[[], torch.Tensor]:
    model = copy.deepcopy(made.model).bfloat16()
    x = made.x.bfloat16() if made.x.is_floating_point() else made.x
    return lambda: Trained(model, x, made.target).logits()


def against_presets(quick: bool) -> tuple[list[Row], str, list[Any]]:
    lines, results, within, fast = [], [], 0, 0
    names = LARGE[: 1 if quick else None]
    for name in names:
        made = trained(name, 3, size=64 if quick else SIZE)
        policies = {preset: hmp.Policy.load(preset) for preset in ("hmp", "balanced")}
        before = errors_and_times(made, policies, 2)
        budget = 1.0001 * min(before["autocast"][0], before["hmp"][0])
        tuned = hmp.tune(made.logits, budget, start="torch-cpu", others="lower")
        results.append((name, made, tuned))
        after = errors_and_times(made, {**policies, "tuned": tuned.policy}, 3 if quick else 30)
        fastest = min(after["autocast"][1], after["hmp"][1])
        within += after["tuned"][0] <= budget
        fast += after["tuned"][1] <= 1.02 * fastest
        ratios = (
            f"{after[each][0]:.2g}, {after[each][1] / after['float32'][1]:.2f}x"
            for each in ("autocast", "bf16", "hmp", "balanced", "tuned")
        )
        wide = sum(part.list == "fp32" for part in tuned.parts)
        lines.append([name, *ratios, f"{wide} of {len(tuned.parts)}", f"{tuned.runs} of {tuned.most_runs}"])
    rows = [
        Row(f"tuned: error at most torch.autocast's and hmp's, of {len(names)} models", float(within), ""),
        Row(f"tuned: time at most 1.02x of the faster of them, of {len(names)} models", float(fast), ""),
    ]
    head = ["model", "torch.autocast", "held in bf16", "hmp", "balanced", "tuned", "in float32", "runs"]
    return rows, table(head, lines), results


def predicted(results: list[Any]) -> list[Row]:
    """Errors and times that were predicted of the policies that ran, against what the searches measured of them."""
    said, found, off = [], [], []
    for *_, tuned in results:
        for point in tuned.points:
            if point.predicted_error and 0 < point.error < math.inf:
                said.append(math.log10(point.predicted_error))
                found.append(math.log10(point.error))
            if point.predicted_seconds and point.timed > 1:
                off.append(abs(point.predicted_seconds - point.seconds) / point.seconds)
    mean = statistics.mean(found)
    rest = sum((a - b) ** 2 for a, b in zip(said, found, strict=True))
    whole = sum((b - mean) ** 2 for b in found) or 1.0
    what = f"predicted error against measured, R2 of the logarithms over {len(found)} policies"
    rows = [Row(what, 1 - rest / whole, "")]
    if off:  # among few policies all may be timed that nothing was predicted of
        what = f"predicted time against measured, median off by, over {len(off)} policies timed in turns"
        rows.append(Row(what, 100 * statistics.median(off), "%"))
    return rows


def exhaustive(quick: bool) -> tuple[list[Row], str]:
    """Of each model two searches with the defaults, every policy of up to three edits of what they start from, and float32."""
    lines, ratios, wide, starts, lists, same, within_budget = [], [], [], [], [], [], []
    start = hmp.Policy.load("balanced")
    for name in [*MODELS][: 1 if quick else None]:
        made = trained(name, 3, size=64 if quick else SIZE)
        budget = 0.8 * errors_and_times(made, {"start": start}, 1)["start"][0]
        tuned, second = (hmp.tune(made.logits, budget) for _ in range(2))
        ops = sorted({part.part.op for part in tuned.parts})
        choices = {
            ",".join(some): start.with_edits(
                *(f"+{op}:{'lower' if start.rule(op).action == 'fp32' else 'fp32'}" for op in some)
            )
            for count in range(1 + min(MOST_EDITS, len(ops)))
            for some in itertools.combinations(ops, count)
        }
        every = errors_and_times(made, choices, 2 if quick else 5)
        within = sorted((each for each in choices if every[each][0] <= budget), key=lambda each: every[each][1])
        # The fastest of many noisy times is not the fastest policy: the best ones are timed again.
        again = errors_and_times(
            made,
            {
                **{each: choices[each] for each in within[:8]},
                "tuned": tuned.policy,
                "second": second.policy,
                "start": start,
            },
            3 if quick else 40,
        )
        best = min([*within[:8], "float32"], key=lambda each: again[each][1])
        own = again["tuned"][1]
        within_budget.append(again["tuned"][0] <= budget)
        lists.append(moved(tuned) == moved(second))
        same.append(lists[-1] or abs(own - again["second"][1]) <= min(tuned.noise or 0, second.noise or 0))
        ratios.append(own / again[best][1])
        wide.append(own / again["float32"][1])
        starts.append(own / again["start"][1])
        lines.append(
            [
                name,
                str(len(choices)),
                str(tuned.runs),
                best.replace(",", ", ") or "none",
                ", ".join(moved(tuned)) or "none",
                *(f"{each[-1]:.3f}x" for each in (ratios, wide, starts)),
                "yes" if lists[-1] else f"{', '.join(moved(second)) or 'none'}: {again['second'][1] / own:.3f}x",
            ]
        )
    total = len(lines)

    def part(good: list[bool]) -> float:
        return 100 * sum(good) / total

    rows = [
        Row(f"tuned: within the budget, of {total} models", part(within_budget), "%"),
        Row(
            f"tuned: time at most 1.05x of the best policy of up to {MOST_EDITS} edits, of {total} models",
            part([each <= 1.05 for each in ratios]),
            "%",
        ),
        Row("tuned: time over float32, slowest model", max(wide), "x"),
        Row(f"tuned: the same lists twice, of {total} models", part(lists), "%"),
        Row(f"tuned: these, or as fast within the noise that both print, of {total} models", part(same), "%"),
    ]
    head = ["model", "policies", "runs of tune", "best: edits", "tuned: edits", "time over best", "over float32"]
    return rows, table([*head, "over balanced, which is above the budget", "the same twice"], lines)


def moved(tuned: hmp.Tuned) -> list[str]:
    """The ops that a search has put into another list than ``balanced`` has them in."""
    start = hmp.Policy.load("balanced")
    rules = {part.part.op: (part.list, start.rule(part.part.op).action) for part in tuned.parts}
    return sorted(f"{op} {own}" for op, (own, before) in rules.items() if own != before and {own, before} & {"fp32"})


def rivals(results: list[Any], quick: bool) -> tuple[list[Row], str]:
    """On the same models and budgets: what others choose, and whether a policy that tune ran is as fast and as exact."""
    lines = []
    beaten = dict.fromkeys(RIVALS, 0)
    for name, made, tuned in results:
        ops = list(dict.fromkeys(part.part.op for part in tuned.parts))
        numbers = {op: sum(part.part.numbers for part in tuned.parts if part.part.op == op) for op in ops}
        trials = {rival: Trial(made.logits, ops, numbers, tuned.budget) for rival in RIVALS}
        choices = {rival: method(trials[rival]) for rival, method in RIVALS.items()}
        policies = {rival: trials[rival].policy(choices[rival]) for rival in RIVALS}
        own = {point.name: point.policy for point in tuned.points}
        found = errors_and_times(made, {**policies, **own, "tuned": tuned.policy}, 2 if quick else 15)
        for rival, trial in trials.items():
            error, seconds = found[rival]
            mine = min(
                (found[each][0] for each in (*own, "tuned", "float32") if found[each][1] <= 1.02 * seconds),
                default=math.inf,
            )
            beaten[rival] += mine <= error * (1 + 1e-6)
            above = " (above the budget)" if error > tuned.budget else ""
            times = f"{seconds / found['tuned'][1]:.2f}x"
            counts = str(trial.runs), str(tuned.runs)
            lines.append([name, rival, f"{error:.2g}{above}", f"{mine:.2g}", times, *counts])
    runs = statistics.median(tuned.runs for *_, tuned in results)
    rows = [
        Row(f"{rival}: as exact at equal time, of {len(results)} models", float(count), "")
        for rival, count in beaten.items()
    ]
    rows.append(Row("runs of tune, median; those of the others are in the table", float(runs), ""))
    head = [
        "model",
        "method",
        "its error",
        "error of tune at equal time",
        "time against tuned",
        "its runs",
        "runs of tune",
    ]
    return rows, table(head, lines)


# The preset


def balanced(quick: bool) -> tuple[list[Row], str]:
    """On ten models with other weights and data than those that it was chosen on."""
    lines, off, slow = [], [], []
    for name in [*MODELS][: 2 if quick else None]:
        made = trained(name, 3, seed=1, size=64 if quick else SIZE)
        for mode in ("inference", "training"):
            found = preset_steps(made, mode, 0.0 if quick else 3.0)
            (error, seconds), (own_error, own_seconds) = found["autocast"], found["balanced"]
            off.append(own_error / error)
            slow.append(own_seconds / seconds)
            lines.append([name, mode, f"{error:.2g}", f"{own_error:.2g}", f"{off[-1]:.3f}", f"{slow[-1]:.3f}x"])
    rows = [
        Row(f"balanced: error against torch.autocast, most of {len(off)}", max(off), "x"),
        Row(f"balanced: time against torch.autocast, most of {len(slow)}", max(slow), "x"),
        Row(f"balanced: time against torch.autocast, median of {len(slow)}", statistics.median(slow), "x"),
    ]
    return rows, table(["model", "step", "error of torch.autocast", "of balanced", "error", "time"], lines)


def preset_steps(made: Trained, mode: str, seconds: float) -> dict[str, tuple[float, float]]:
    found: dict[str, torch.Tensor] = {}

    def visit(name: str, region: Callable[[], Any]) -> Callable[[], float]:
        def once() -> float:
            made.model.zero_grad()
            begin = time.perf_counter()
            with torch.set_grad_enabled(mode == "training"), region():
                logits = made.logits()
                loss = functional.cross_entropy(logits, made.target)
            if mode == "training":
                loss.backward()
            seconds = time.perf_counter() - begin
            found[name] = logits.detach()
            return seconds

        return once

    best = take_turns(
        {name: visit(name, each) for name, each in regions({"balanced": hmp.Policy.load("balanced")}).items()},
        3,
        seconds,
    )
    exact = found["float32"].double()
    return {name: (((found[name].double() - exact).norm() / exact.norm()).item(), best[name]) for name in best}


def measure(quick: bool) -> Report:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    plants = planted(quick)
    rows, presets_table, results = against_presets(quick)
    all_rows, all_table = exhaustive(quick)
    rival_rows, rival_table = rivals(results, quick)
    over = max(tuned.runs - tuned.most_runs for *_, tuned in results)
    runs = [Row("runs beyond those that were announced, n // 2 + 44 for n ops", float(max(0, over)), "")]
    figures = [*plants, *rows, *all_rows, *predicted(results), *runs]
    preset_rows, preset_table = balanced(quick)
    text = (
        f"{table_of(figures)}\n\nInference: the error of the logits against float32, and the time as a part of float32's. The budget is the smaller error of "
        f"torch.autocast's and of hmp's:\n\n{presets_table}\n\nEvery choice of ops, tried:\n\n{all_table}\n\nOther methods on the same models and budgets. They decide between the same two lists:\n\n"
        f"{table_of(rival_rows)}\n\n{rival_table}\n\nThe preset `balanced`, with other weights and data than those that it was chosen on:\n\n{table_of(preset_rows)}\n\n{preset_table}"
    )
    return Report("Tuning", [*figures, *rival_rows, *preset_rows], text)


if __name__ == "__main__":
    run(__doc__, measure)
