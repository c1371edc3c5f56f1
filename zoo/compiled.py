"""docs/compiled.md: what the results of zoo/cases/compiles.py say, by the template beside this file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jinja2
import torch
import transformers

from zoo import reasons
from zoo.cases import Difference, Run
from zoo.cases.compiles import EXACT, FUSED, MOST, OF_NORMS, YARDSTICK, is_far
from zoo.findings import Results, is_case, median

# How many times the difference that compiled code has without a policy is not ours.
TIMES = 4
# The largest relative error of rounding one number to bfloat16.
ROUNDING = 2.0**-8
SAME, CLOSE, TORCH, OFF = "same bits", "close", "as torch", "off"


class Row(NamedTuple):
    """The cases of a kind under one policy: what became of their outputs, and of the gradients of all weights but those of norms."""

    kind: str
    policy: str
    cases: int
    verdicts: Counter[str]
    gradients: list[float]
    of_norms: list[float]


class Off(NamedTuple):
    """Results that are further off than the page allows, or none at all."""

    label: str
    policy: str
    what: str
    error: str
    share: str
    torch: str
    reason: str


def rows(results: Results) -> list[Row]:
    found: dict[tuple[str, str], list[tuple[Run, str]]] = {}
    for label, run, verdict in _exact(results):
        found.setdefault((label.partition("/")[0], run.policy), []).append((run, verdict))
    return [
        Row(
            *key,
            len(runs),
            Counter(verdict for _, verdict in runs),
            sorted(_worst(run, "gradients in") for run, _ in runs if run.differences),
            sorted(_worst(run, OF_NORMS) for run, _ in runs if run.differences),
        )
        for key, runs in found.items()
    ]


def _exact(results: Results) -> Iterator[tuple[str, Run, str]]:
    for label, runs in results.items():
        yardstick = next((run for run in runs if (run.front, run.policy) == YARDSTICK), None)
        yield from ((label, run, _verdict(run, yardstick)) for run in runs if run.front == EXACT)


def _verdict(run: Run, yardstick: Run | None) -> str:
    outputs = [each for each in run.differences if each.of.startswith("outputs")]
    far = [each for each in outputs if is_far(each)]
    if not outputs or any(each.share for each in outputs if "float32" not in each.of):
        return OFF
    if not far:
        return CLOSE if any(each.share for each in outputs) else SAME
    return TORCH if yardstick and all(_error(each) <= TIMES * _worst(yardstick, each.of) for each in far) else OFF


def _error(difference: Difference) -> float:
    return float("inf") if difference.error is None else difference.error


def _worst(run: Run, of: str) -> float:
    return max((_error(each) for each in run.differences if each.of.startswith(of)), default=0.0)


def off(results: Results) -> list[Off]:
    """Those without a reason before the others."""
    found = []
    for label, run, verdict in _exact(results):
        runs = results[label]
        if not run.differences:
            found.append(_off(label, run, run.outcomes[0].text, Difference("", None, 1), ""))
            continue
        yardstick = next((each for each in runs if (each.front, each.policy) == YARDSTICK), None)
        for each in run.differences:
            beyond = verdict == OFF and (is_far(each) or (each.share > 0 and each.of.startswith("outputs in b")))
            if beyond or (each.of.startswith("gradients in") and _error(each) > ROUNDING):
                beside = number(_worst(yardstick, each.of)) if yardstick and "float32" in each.of else ""
                found.append(_off(label, run, each.of, each, beside))
    return sorted(found, key=lambda row: (bool(row.reason), row.reason, row.label))


def _off(label: str, run: Run, what: str, difference: Difference, beside: str) -> Off:
    reason = reasons.find(reasons.COMPILED, f"{label} {run.policy}: {what}")
    error = "" if difference.error is None else number(difference.error)
    return Off(label, run.policy, what, error, number(100 * difference.share) if error else "", beside, reason)


def families(results: Results) -> dict[str, bool]:
    """Each architecture that compiles: whether all its outputs are as the lists say."""
    found: dict[str, bool] = {}
    for label, run, verdict in _exact(results):
        if run.differences:
            name = label.partition("/")[2]
            found[name] = found.get(name, True) and verdict != OFF
    return found


def number(value: float) -> str:
    return f"{value:.1e}" if 0 < value < 0.1 else f"{value:.3g}"


def text(results: Results) -> str:
    """What was found, for the terminal."""
    lines = [" ".join(filter(None, each)) for each in off(results)]
    return "\n".join(lines) or "Compiled code gives the numbers of uncompiled code."


def page(results: Results, commit: str) -> str:
    ran = {label: runs for label, runs in results.items() if is_case(runs)}
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), undefined=jinja2.StrictUndefined, autoescape=False
    )
    environment.filters.update(number=number, median=median, cell=lambda cell: cell.replace("|", "\\|"))
    found, good = off(ran), families(ran)
    fused = [_worst(run, "outputs") for runs in ran.values() for run in runs if run.front == FUSED and run.differences]
    return environment.get_template("compiled.md.jinja").render(
        torch=torch.__version__,
        transformers=transformers.__version__,
        commit=commit,
        families=good,
        rows=rows(ran),
        verdicts=(SAME, CLOSE, TORCH, OFF),
        off=found,
        unexplained=[each for each in found if not each.reason],
        fused=sorted(fused),
        most=number(MOST),
        times=TIMES,
        rounding=ROUNDING,
    )
