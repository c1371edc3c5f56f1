"""What the results say: what raises where torch.autocast runs, where the front ends disagree, and how far numbers are from float32."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from zoo import reasons
from zoo.cases import Outcome, Run

Results = Mapping[str, list[Run]]
# A front end and a policy.
Variant = tuple[str, str]


class Row(NamedTuple):
    """One line of the summary: the calls of a kind of cases under one policy by one front end."""

    kind: str
    policy: str
    front: str
    calls: int
    raised: int
    # Where torch.autocast runs; and of those, for no reason that the table of reasons has.
    raised_alone: int
    unexplained: int


class Raise(NamedTuple):
    """An error that torch.autocast does not raise, under some front ends and policies, with the cases that have it."""

    message: str
    reason: str
    where: tuple[Variant, ...]
    labels: list[str]


@dataclass
class Disagreement:
    """Cases whose results have the same other dtypes under convert than under autocast, with the same policies."""

    labels: list[str]
    reason: str
    policies: set[str] = field(default_factory=set)
    dtypes: Counter[str] = field(default_factory=Counter)


class Errors(NamedTuple):
    """Relative errors of an architecture against float32, by variant: of the outputs or of the gradients."""

    label: str
    torch: float
    ours: dict[Variant, float]

    @property
    def worst(self) -> float:
        return max(self.ours.values())


def is_case(runs: list[Run]) -> bool:
    """Whether this is a case at all: an architecture whose tiny configuration fails without us is none."""
    return any(outcome.where == "ran" for run in runs if run.front == "none" for outcome in run.outcomes)


def pairs(runs: list[Run]) -> Iterator[tuple[Run, Outcome, Outcome]]:
    """Each outcome under a policy, with that of the same call under torch.autocast."""
    theirs = {run.inputs: run.outcomes for run in runs if run.front == "torch.autocast"}
    for run in runs:
        if run.policy:
            beside = theirs.get(run.inputs, [])
            for place, outcome in enumerate(run.outcomes):
                yield run, outcome, beside[place] if place < len(beside) else Outcome("process", "")


def raises(results: Results) -> list[Raise]:
    """The errors that most cases have come first."""
    where: dict[tuple[str, str, str], set[Variant]] = {}
    for label, runs in results.items():
        for run, ours, theirs in pairs(runs):
            if ours.where != "ran" and theirs.where == "ran":
                message = f"{general(ours.text)}{' (backward)' if ours.where == 'backward' else ''}"
                key = (label, message, reason_of(label, run, ours))
                where.setdefault(key, set()).add((run.front, run.policy))
    rows: dict[tuple[str, str, tuple[Variant, ...]], Raise] = {}
    for (label, message, reason), variants in where.items():
        key = (message, reason, tuple(sorted(variants)))
        rows.setdefault(key, Raise(*key, [])).labels.append(label)
    return sorted(rows.values(), key=lambda row: (row.reason, -len(row.labels), row.message))


def reason_of(label: str, run: Run, outcome: Outcome) -> str:
    return reasons.find(reasons.RAISES, f"{label} {run.front} {run.policy}: {outcome.text}")


def general(message: str) -> str:
    """The message without the numbers of one call."""
    message = re.sub(r"\[[\d, ]*\]", "[...]", message)
    return re.sub(r"\d+", "N", message) if "shape" in message or "size" in message else message


def disagreements(results: Results) -> list[Disagreement]:
    found: dict[str, Disagreement] = {}
    for label, runs in results.items():
        for policy, convert, autocast in _both(runs):
            if convert.where == autocast.where == "ran" and convert.text != autocast.text:
                row = found.setdefault(label, Disagreement([label], reasons.find(reasons.DISAGREEMENTS, label)))
                row.policies.add(policy)
                row.dtypes[f"{convert.text} / {autocast.text}"] += 1
    rows: dict[tuple[str, tuple[str, ...], tuple[str, ...]], Disagreement] = {}
    for row in found.values():
        first = rows.setdefault((row.reason, tuple(sorted(row.policies)), tuple(sorted(row.dtypes))), row)
        if first is not row:
            first.labels += row.labels
            first.dtypes += row.dtypes
    return sorted(rows.values(), key=lambda row: row.reason)


def one_alone(results: Results) -> Counter[str]:
    """Calls that run under one front end and raise under the other, counted by the one that raises."""
    found: Counter[str] = Counter()
    for runs in results.values():
        for _, convert, autocast in _both(runs):
            if (convert.where == "ran") != (autocast.where == "ran"):
                found["autocast" if convert.where == "ran" else "convert"] += 1
    return found


def _both(runs: list[Run]) -> Iterator[tuple[str, Outcome, Outcome]]:
    by_front = {(run.front, run.policy, run.inputs): run.outcomes for run in runs}
    for (front, policy, inputs), outcomes in by_front.items():
        if front == "convert":
            for ours, theirs in zip(outcomes, by_front.get(("autocast", policy, inputs), []), strict=False):
                yield policy, ours, theirs


def summary(results: Results) -> list[Row]:
    counts: dict[tuple[str, str, str], Counter[str]] = {}
    for label, runs in results.items():
        kind = label.partition("/")[0]
        for run, ours, theirs in pairs(runs):
            count = counts.setdefault((kind, run.policy, run.front), Counter())
            count["calls"] += 1
            count["raised"] += ours.where != "ran"
            if ours.where != "ran" and theirs.where == "ran":
                count["alone"] += 1
                count["unexplained"] += not reason_of(label, run, ours)
    return [
        Row(*key, count["calls"], count["raised"], count["alone"], count["unexplained"])
        for key, count in counts.items()
    ]


def parameters(results: Results) -> dict[str, dict[str, str]]:
    """Architectures that convert makes with other parameters, by policy."""
    return {
        label: changed
        for label, runs in results.items()
        if (changed := {r.policy: r.parameters for r in runs if r.parameters})
    }


def errors(results: Results, of: str) -> list[Errors]:
    """``of`` is output_error or gradient_error. An architecture whose sizes differ between runs has none."""
    found = []
    for label, runs in results.items():
        values = {(run.front, run.policy): getattr(run, of) for run in runs if getattr(run, of) is not None}
        reference = values.pop(("torch.autocast", ""), None)
        if reference is not None and values:
            found.append(Errors(label, reference, values))
    return sorted(found, key=lambda row: -row.worst)


def median(numbers: Iterable[float]) -> float:
    values = list(numbers)
    return statistics.median(values) if values else math.nan
