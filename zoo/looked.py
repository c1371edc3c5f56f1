"""docs/instruments.md: what the results of zoo/cases/looks.py say, by the template beside this file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import jinja2
import torch
import transformers

from zoo import reasons
from zoo.cases import Run
from zoo.cases.looks import ROUNDS
from zoo.findings import Results, general, is_case

MOST_LABELS = 6


class Row(NamedTuple):
    """A kind of cases under one instrument: how many calls were compared, and what became of them."""

    kind: str
    instrument: str
    cases: int
    calls: int
    same: int
    not_repeatable: int
    changed: int
    raised: int
    ended: int
    rounds: int
    grew: int


class Fault(NamedTuple):
    """What an instrument did to some cases."""

    instrument: str
    what: str
    reason: str
    labels: list[str]


def rows(results: Results) -> list[Row]:
    counts: dict[tuple[str, str], Counter[str]] = {}
    for label, runs in results.items():
        kind = label.partition("/")[0]
        for instrument in {run.front for run in runs} - {"none"}:
            count = counts.setdefault((kind, instrument), Counter())
            count["cases"] += 1
            for run in (each for each in runs if each.front == instrument):
                _count(run, count)
    return [Row(*key, *(count[name] for name in Row._fields[2:])) for key, count in sorted(counts.items(), key=_place)]


def _count(run: Run, count: Counter[str]) -> None:
    rounds = run.policy.endswith("rounds")
    for outcome in run.outcomes:
        count["rounds" if rounds else "calls"] += 1
        if outcome.where == "ran":
            if not rounds:
                count["not_repeatable" if outcome.text else "same"] += 1
        else:
            count["ended" if outcome.where == "process" else outcome.where] += 1


def _place(item: tuple[tuple[str, str], Counter[str]]) -> tuple[int, int]:
    kind, instrument = item[0]
    return (
        ["op", "module", "layer", "architecture"].index(kind),
        ["values", "errors", "nonfinite", "compare", "tune"].index(instrument),
    )


def faults(results: Results) -> list[Fault]:
    """The most frequent first, those without a reason before the others."""
    found: dict[tuple[str, str, str], Fault] = {}
    for label, runs in results.items():
        for run in runs:
            for outcome in run.outcomes:
                if run.front == "none" or outcome.where == "ran":
                    continue
                what = f"{outcome.where}: {general(outcome.text)}" if outcome.where != "grew" else "grew"
                reason = reasons.find(
                    reasons.LOOKED_AT, f"{label} {run.front} {run.policy}: {outcome.where} {outcome.text}"
                )
                fault = found.setdefault((run.front, what, reason), Fault(run.front, what, reason, []))
                if label not in fault.labels:
                    fault.labels.append(label)
    return sorted(found.values(), key=lambda fault: (bool(fault.reason), -len(fault.labels), fault))


def text(results: Results) -> str:
    """What was found, for the terminal."""
    lines = [f"{each.instrument}: {each.what}: {', '.join(each.labels)}. {each.reason}" for each in faults(results)]
    return "\n".join(lines) or "No instrument changes anything."


def page(results: Results, commit: str) -> str:
    ran = {label: runs for label, runs in results.items() if is_case(runs)}
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), undefined=jinja2.StrictUndefined, autoescape=False
    )
    environment.filters["labels"] = _labels
    environment.filters["cell"] = lambda cell: cell.replace("|", "\\|").replace("<", "&lt;")
    found = faults(ran)
    return environment.get_template("looked.md.jinja").render(
        torch=torch.__version__,
        transformers=transformers.__version__,
        commit=commit,
        counts=Counter(label.partition("/")[0] for label in ran),
        rows=rows(ran),
        faults=found,
        unexplained=[fault for fault in found if not fault.reason],
        rounds=ROUNDS,
    )


def _labels(labels: list[str]) -> str:
    shown = ", ".join(f"`{label}`" for label in labels[:MOST_LABELS])
    return shown + (f" and {len(labels) - MOST_LABELS} more" if len(labels) > MOST_LABELS else "")
