"""What reports with values foretell, against what happens; planted faults that are found; and what measuring and recording cost a step."""

from __future__ import annotations

import contextlib
import copy
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
from subjects.faults import commands, differences, plants, ranges
from subjects.recordings import recordings
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from habana_mp import hmp
from habana_mp._show.module_path import ModulePath

sys.path.insert(0, str(Path(__file__).parent.parent))
from zoo.small_models import Trained, trained

MODELS = ("MLP", "CNN", "GPT", "BERT", "ViT", "llama")
WIDE = hmp.Policy.from_ops(lower=[], rest="fp32", name="wide")


def exact_loss(made: Trained) -> float:
    """In float64 from the logits on: the changes are smaller than what a loss in float32 can show."""
    with torch.no_grad():
        return functional.cross_entropy(made.logits().double(), made.target).item()


def alone(model: nn.Module, path: str, op: str) -> dict[str, hmp.Policy]:
    """The policies of the parts of a model where one op in one module runs low, and all else in float32."""
    below = {f"{path}.{name}" if path else name: WIDE for name, _ in model.get_submodule(path).named_children()}
    return {"": WIDE, **below, path: hmp.Policy.from_ops(lower=[op], rest="fp32", name="low")}


def places(name: str, steps: int, seed: int) -> list[tuple[str, float, float]]:
    """Of each op in each module: its name, the change of the loss that is foretold, and the one that is measured."""
    made = trained(name, steps, seed)
    model = made.model
    with hmp.report(values=True) as report:
        made.loss().backward()
    before = exact_loss(made)
    modules = dict(model.named_modules())
    foretold: dict[tuple[str, str, str], float] = {}
    for row in report.to_dict()["rows"]:
        root, path = ModulePath.of(row["module"])
        if "values" not in row or not row["values"]["losses"] or not root or path not in modules:
            continue
        # A row is of one line of the code: a policy has all lines of the module that call the op.
        (change,) = row["values"]["losses"]
        place = root, path, row["op"]
        foretold[place] = foretold.get(place, 0.0) + change["change_low"]
    found = []
    for (root, path, op), change_low in foretold.items():
        with hmp.set_policies(model, alone(model, path, op)), hmp.autocast("cpu", policy=WIDE):
            measured = exact_loss(made) - before
        found.append((f"{op} in {path or root}", change_low, measured))
    return found


def ranks(numbers: list[float]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64).argsort().argsort().double()


def correlation(first: list[float], second: list[float]) -> float:
    return torch.corrcoef(torch.stack([ranks(first), ranks(second)]))[0, 1].item()


def shares(quick: bool) -> tuple[list[Row], str]:
    rows, lines, named = [], [], []
    for name in MODELS[: 1 if quick else None]:
        off, rank = [], []
        for seed in range(1 if quick else 4):
            found = places(name, 2 if quick else 10, seed)
            foretold, measured = [one for _, one, _ in found], [one for *_, one in found]
            # What moves the loss by less than float32 can show is not measured either.
            off += [abs(a - b) / abs(b) for a, b in zip(foretold, measured, strict=True) if abs(b) > 1e-7]
            rank.append(correlation([abs(one) for one in foretold], [abs(one) for one in measured]))
            top = max(found, key=lambda place: abs(place[2]))
            named.append(top == max(found, key=lambda place: abs(place[1])))
            figures = f"{top[1]:.2e}", f"{top[2]:.2e}", "yes" if named[-1] else "no"
            lines.append([name, f"{seed}", f"{len(found)}", top[0], *figures])
        rows += [
            Row(f"{name}: foretold change of the loss, median off by", 100 * statistics.median(off), "%"),
            Row(f"{name}: rank correlation over the places, median of the seeds", statistics.median(rank), ""),
        ]
    rows.append(Row(f"the place that moves the loss most is named first, of {len(named)}", float(sum(named)), ""))
    head = ["model", "seed", "places", "the place that moves the loss most", "foretold", "measured", "named first"]
    return rows, table(head, lines)


def edited(quick: bool) -> tuple[list[Row], str]:
    """The error of the outputs that the first edit foretells, now and with it, against running both policies."""
    lines, off_now, off_after = [], [], []
    for name in MODELS[: 1 if quick else None]:
        made = trained(name, 2 if quick else 10)

        def outputs(policy: hmp.Policy, made: Trained = made) -> torch.Tensor:
            with hmp.autocast("cpu", policy=policy):
                return made.logits().double()

        policy = hmp.Policy.load("hmp")
        with hmp.report(values=True) as report:
            report.project(outputs(policy), k=32)
        edit = next(each for each in report.edits() if each.text.endswith(":fp32"))
        with torch.no_grad():
            exact, ran, mended = (outputs(each) for each in (WIDE, policy, policy.with_edits(edit.text)))
        now, after = (((each - exact).norm() / exact.norm()).item() for each in (ran, mended))
        assert edit.error is not None
        assert edit.error_after is not None
        off_now.append(abs(edit.error - now) / now)
        off_after.append(abs(edit.error_after - after) / after)
        lines.append([name, edit.text, *(f"{each:.2g}" for each in (edit.error, now, edit.error_after, after))])
    rows = [
        Row("foretold error of the outputs now, median off by", 100 * statistics.median(off_now), "%"),
        Row(
            "foretold error of the outputs with the first edit, median off by", 100 * statistics.median(off_after), "%"
        ),
    ]
    head = ["model", "first edit of hmp", "error foretold", "measured", "with the edit, foretold", "measured"]
    return rows, table(head, lines)


class DispatchMode(TorchDispatchMode):
    """The errors of all ops in Python, as torch lets one write it: without casts, modules, gradients or rows."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: dict[str, float] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        low = [one for one in args if isinstance(one, torch.Tensor) and one.dtype == torch.bfloat16]
        if not low or func.is_view or func._schema.is_mutable:
            return result
        wide = tree_map_only(torch.Tensor, lambda t: t.float() if t.dtype == torch.bfloat16 else t, (args, kwargs))
        with contextlib.suppress(RuntimeError):
            full = func(*wide[0], **wide[1])
            for ran, other in zip(tree_leaves(result), tree_leaves(full), strict=True):
                if isinstance(ran, torch.Tensor) and ran.dtype == torch.bfloat16:
                    off = ((ran.float() - other.float()).norm() / other.float().norm()).item()
                    self.errors[str(func)] = max(self.errors.get(str(func), 0.0), off)
        return result


def costs(quick: bool) -> list[Row]:
    rows = []
    for name in ("GPT", "MLP"):
        made = trained(name, 1)
        made = Trained(made.model, made.x.repeat(4, *[1] * (made.x.dim() - 1)), made.target.repeat(4))

        def step(made: Trained = made) -> None:
            with hmp.autocast("cpu", policy="torch-cpu"):
                loss = made.loss()
            loss.backward()
            made.model.zero_grad()

        def timed(round_it: Callable[[], Any], step: Callable[[], None] = step) -> Callable[[], float]:
            def visit() -> float:
                start = time.perf_counter()
                with round_it():
                    step()
                return time.perf_counter() - start

            return visit

        visits = {
            "plain": timed(contextlib.nullcontext),
            "errors": timed(lambda: hmp.report(values="errors")),
            "values": timed(lambda: hmp.report(values=True)),
            "dispatch": timed(DispatchMode),
            "compare": lambda step=step: timed_compare(step),
        }
        best = take_turns(visits, 2 if quick else 12)
        with hmp.report(values=True) as report:
            step()

        def advice(report: hmp.CastReport = report) -> float:
            again = copy.copy(report)  # which has not looked for it
            start = time.perf_counter()
            str(again)
            return time.perf_counter() - start

        printed = take_turns({"print": advice}, 2 if quick else 12)
        beside = f"TorchDispatchMode, errors alone: {best['dispatch'] / best['plain']:.2f}x"
        rows += [
            Row(f"{name}: a step with values=True", best["values"] / best["plain"], "x", beside),
            Row(f'{name}: a step with values="errors"', best["errors"] / best["plain"], "x", beside),
        ]
        rows += [
            Row(f"{name}: printing the report, advice and all, over a step", printed["print"] / best["plain"], "x"),
            Row(f"{name}: hmp.compare of the step with itself", best["compare"] / best["plain"], "x"),
        ]
    return rows


def timed_compare(step: Callable[[], None]) -> float:
    start = time.perf_counter()
    hmp.compare(step, step)
    return time.perf_counter() - start


def measure(quick: bool) -> Report:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    rows, first = shares(quick)
    edit_rows, second = edited(quick)
    found = [*plants(), *ranges(quick), *differences(quick), *commands(), *costs(quick), *recordings(quick)]
    text = (
        "Each op in each module alone in bfloat16, all else in float32: the change of the loss that one float32 step foretells "
        "(`hmp.report(values=True)`), and the measured one. The loss op itself is left out.\n\n"
        f"{table_of(rows)}\n\n{first}\n\nThe error of the outputs under `hmp`, and with the first edit that the report gives:\n\n"
        f"{table_of(edit_rows)}\n\n{second}\n\nFaults that are planted, ranges, and what a step costs, measured or recorded:\n\n{table_of(found)}"
    )
    return Report("Values", [*rows, *edit_rows, *found], text)


if __name__ == "__main__":
    run(__doc__, measure)
