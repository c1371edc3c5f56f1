"""docs/compatibility.md, from the results by the template beside this file."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jinja2
import torch
import transformers

from zoo import findings
from zoo.findings import Results

# Rows of a table before "and so many more", and architectures with the largest errors.
MOST_ROWS = 40
MOST_LABELS = 6
LARGEST = 20


def page(results: Results, commit: str) -> str:
    ran = {label: runs for label, runs in results.items() if findings.is_case(runs)}
    not_run = {label: runs[0].outcomes[0].text for label, runs in results.items() if label not in ran}
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        autoescape=False,
    )
    environment.filters.update(
        cell=_cell, labels=_labels, fronts=_fronts, dtypes=_dtypes, policies=_policies, number=_number, of=_of_policy
    )
    outputs = findings.errors(ran, "output_error")
    summary = findings.summary(ran)
    return environment.get_template("page.md.jinja").render(
        torch=torch.__version__,
        transformers=transformers.__version__,
        commit=commit,
        counts=Counter(label.partition("/")[0] for label in ran),
        not_run=Counter(label.partition("/")[0] for label in not_run),
        lacking=sum(message.startswith("ImportError") for message in not_run.values()),
        summary=summary,
        unexplained=sum(row.unexplained for row in summary),
        raises=_by_reason(findings.raises(ran)),
        disagreements=_by_reason(findings.disagreements(ran)),
        alone=findings.one_alone(ran),
        parameters=findings.parameters(ran),
        medians=_medians(outputs, findings.errors(ran, "gradient_error")),
        columns=sorted({policy for row in outputs for _, policy in row.ours}),
        largest=outputs[:LARGEST],
        most=MOST_ROWS,
    )


def text(results: Results) -> str:
    """What was found, for the terminal."""
    rows = [
        f"{row.message} [{_fronts(row.where)}] {', '.join(row.labels)}. {row.reason}"
        for row in findings.raises(results)
    ]
    rows += [
        f"{', '.join(row.labels)}: convert / autocast: {_dtypes(row.dtypes)} [{_policies(row.policies)}] {row.reason}"
        for row in findings.disagreements(results)
    ]
    rows += [
        f"{label}: {_policies(changed)}: {next(iter(changed.values()))}"
        for label, changed in findings.parameters(results).items()
    ]
    return "\n".join(rows) or "Nothing raises alone, and the front ends agree."


def _by_reason(rows: list[Any]) -> list[tuple[str, list[Any]]]:
    return [(reason, list(group)) for reason, group in itertools.groupby(rows, key=lambda row: row.reason)]


def _medians(outputs: list[findings.Errors], gradients: list[findings.Errors]) -> list[dict[str, Any]]:
    """A row for torch.autocast, and one for each policy and front end."""
    both = {"outputs": outputs, "gradients": gradients}
    rows = [
        {
            "name": "torch.autocast",
            "front": "",
            **{of: _middle_and_worst(row.torch for row in errors) for of, errors in both.items()},
        }
    ]
    for front, policy in sorted({key for row in outputs for key in row.ours}, key=lambda key: (key[1], key[0])):
        each = {
            of: _middle_and_worst(row.ours[front, policy] for row in errors if (front, policy) in row.ours)
            for of, errors in both.items()
        }
        rows.append({"name": f"`{policy}`", "front": front, **each})
    return rows


def _middle_and_worst(numbers: Iterable[float]) -> dict[str, float]:
    values = list(numbers)
    return {"median": findings.median(values), "worst": max(values, default=math.nan)}


def _cell(message: str) -> str:
    return message.replace("|", "\\|").replace("<", "&lt;")


def _fronts(where: Iterable[findings.Variant]) -> str:
    """``autocast: hmp; convert: hmp, hmp-o2``."""
    by_front: dict[str, list[str]] = {}
    for front, policy in where:
        by_front.setdefault(front, []).append(policy)
    return "; ".join(f"{front}: {', '.join(policies)}" for front, policies in by_front.items())


def _labels(labels: list[str]) -> str:
    shown = ", ".join(f"`{label}`" for label in labels[:MOST_LABELS])
    return shown + (f" and {len(labels) - MOST_LABELS} more" if len(labels) > MOST_LABELS else "")


def _dtypes(dtypes: Counter[str]) -> str:
    (first, _), *others = dtypes.most_common()
    return first + (f" and {len(others)} more" if others else "")


def _policies(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _number(value: float) -> str:
    return f"{value:.1e}" if 0 < abs(value) < 0.1 else f"{value:.2g}"


def _of_policy(errors: Mapping[tuple[str, str], float], policy: str) -> str:
    """The larger one of both front ends, or a dash where both raised."""
    values = [value for (_, name), value in errors.items() if name == policy]
    return _number(max(values)) if values else "-"
