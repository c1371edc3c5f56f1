"""The advice of reports with values, followed: each edit that there is and the first three of the sequence, run and measured, and each preset."""

from __future__ import annotations

import math
import statistics
import sys
import warnings
from dataclasses import dataclass, field

import torch
import transformers
from harness.command import run
from harness.pages import Report
from harness.rows import Row, table, table_of
from subjects.carried import LOSSES, Subject, subjects

from habana_mp import hmp

# In a report: one batch has an error by chance. A loss is one number of each, outputs are many.
BATCHES = {"outputs": 4, "loss": 64}
POLICIES = {
    "hmp": hmp.Policy.load("hmp"),
    "hpu-autocast": hmp.Policy.load("hpu-autocast"),
    "float16": hmp.Policy.load("hmp").with_low_dtype(torch.float16),
}
NOTHING = 1e-7  # relative: what float32 itself is off by


@dataclass
class Case:
    """A model under a policy, by outputs or by a loss: errors that are foretold and measured."""

    name: str
    now: tuple[float, float]
    alone: dict[str, float]  # measured, of every edit that there is
    first: list[tuple[str, float, float]]  # of the sequence: foretold, measured
    presets: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def gain(self) -> float | None:
        """What the first edit takes away, over what the best one does. None if the best takes away less than 5 % of the error."""
        best = max((self.now[1] - error for error in self.alone.values()), default=0.0)
        if best < 0.05 * self.now[1]:
            return None
        own = self.alone[self.first[0][0]] if self.first else self.now[1]
        return (self.now[1] - own) / best


class Measured:
    """What a subject is off by under policies, each run once."""

    def __init__(self, subject: Subject, of: str) -> None:
        self._subject, self._of = subject, of
        self._known: dict[str, float] = {}
        self._exact = [
            self._run(None, number) for number in range(subject.losses if of == "loss" else subject.measured)
        ]

    def _run(self, policy: hmp.Policy | None, number: int) -> torch.Tensor:
        subject = self._subject
        batch = subject.batch(number)
        # With gradients, as in the report: without them attention may take another kernel.
        with hmp.autocast("cpu", policy=policy, enabled=policy is not None):
            outputs = subject.outputs(batch)
        outputs = outputs.detach().double()
        return outputs if self._of == "outputs" else subject.loss(outputs, number)

    def error(self, policy: hmp.Policy) -> float:
        key = str(policy)
        if key not in self._known:
            off = [(self._run(policy, number) - exact).norm().item() for number, exact in enumerate(self._exact)]
            sizes = [exact.norm().item() for exact in self._exact] if self._of == "outputs" else [1.0] * len(off)
            self._known[key] = math.hypot(*off) / math.hypot(*sizes)
        return self._known[key]


def report_of(subject: Subject, policy: hmp.Policy, of: str) -> hmp.CastReport:
    with hmp.report(values=True) as report:
        for number in range(BATCHES[of]):
            batch = subject.batch(number)
            with hmp.autocast("cpu", policy=policy):
                outputs = subject.outputs(batch)
            if of == "outputs":
                report.project(outputs, k=32, seed=number)
            else:
                subject.loss(outputs.float(), number).backward()
    subject.model.zero_grad()
    return report


def followed(subject: Subject, policy: hmp.Policy, of: str, name: str) -> Case | None:
    measured = Measured(subject, of)
    report = report_of(subject, policy, of)
    now = measured.error(policy)
    if not NOTHING < now < math.inf:
        return None
    edits = report.edits()
    # What ran in float32 cannot get better.
    texts = [f"+{op}:fp32" for op in dict.fromkeys(row.op for row in report.rows if row.error and float(row.error) > 0)]
    alone = {text: measured.error(policy.with_edits(text)) for text in texts}
    first, so_far = [], policy
    for edit in [each for each in edits if each.text.endswith(":fp32")][:3]:
        so_far = so_far.with_edits(edit.text)
        if edit.error_after is not None:
            first.append((edit.text, edit.error_after, measured.error(so_far)))
    (foretold,) = report.errors().values()
    case = Case(name, (foretold, now), alone, first)
    for preset, error in report.presets().items():
        if preset in ("hmp", "balanced", "hpu-autocast", "torch-cpu", "torch-cuda"):
            found = measured.error(hmp.Policy.load(preset).with_low_dtype(policy.low_dtype))
            case.presets[preset] = error, found
    return case


def _off(foretold: float, measured: float, now: float) -> float:
    """What is left where nothing is has no relative error."""
    return abs(foretold - measured) / max(measured, 0.02 * now)


def summary(cases: list[Case]) -> list[Row]:
    gains = [case.gain for case in cases if case.gain is not None]
    steps = [
        after > 1.02 * before
        for case in cases
        for (_, _, after), before in zip(
            case.first, [case.now[1], *(measured for *_, measured in case.first)], strict=False
        )
    ]
    last = [_off(case.first[-1][1], case.first[-1][2], case.now[1]) for case in cases if case.first]
    presets = [_off(*pair, case.now[1]) for case in cases for pair in case.presets.values()]

    def part(chosen: list[bool]) -> float:
        return 100 * sum(chosen) / max(1, len(chosen))

    def within(off: list[float], limit: float) -> float:
        return part([each <= limit for each in off])

    return [
        Row(
            f"first edit gains 0.8 of the best or more, of {len(gains)} cases",
            part([each >= 0.8 for each in gains]),
            "%",
        ),
        Row(f"edits among the first three that make the error larger, of {len(steps)}", part(steps), "%"),
        Row(f"error after three edits, foretold within 25 %, of {len(last)}", within(last, 0.25), "%"),
        Row("error after three edits, median off by", 100 * statistics.median(last or [0.0]), "%"),
        Row(f"error of a preset, foretold within 20 %, of {len(presets)}", within(presets, 0.2), "%"),
    ]


def line_of(case: Case) -> list[str]:
    best = min(case.alone, key=lambda text: case.alone[text])
    first = "none" if not case.first else case.first[0][0]
    after = ["", ""] if not case.first else [f"{each:.2g}" for each in case.first[-1][1:]]
    gain = "" if case.gain is None else f"{case.gain:.2f}"
    balanced = [f"{each:.2g}" for each in case.presets.get("balanced", ())] or ["", ""]
    return [case.name, *(f"{each:.2g}" for each in case.now), first, best, gain, *after, *balanced]


def measure(quick: bool) -> Report:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    cases, names = [], []
    for subject in subjects(quick):
        names.append(subject.name)
        for name, policy in [*POLICIES.items()][: 1 if quick else None]:
            for of in ("outputs", "loss"):
                if (name, of) in subject.left_out:
                    continue
                case = followed(subject, policy, of, f"{subject.name}, {name}, {of}")
                if case is not None:
                    cases.append(case)
                    print("  ".join(line_of(case)), file=sys.stderr, flush=True)  # it takes an hour
    rows = summary(cases)
    head = [
        *("case", "error foretold", "measured", "first edit", "best edit", "gain of the first / best"),
        *("after three, foretold", "measured", "balanced, foretold", "measured"),
    ]
    text = (
        f"The edits of reports with values, followed on {len(names)} models ({', '.join(names)}). A loss is measured on {LOSSES} batches, reports are made on {BATCHES['loss']} of them: the root of the mean of its squared changes. Both are 64 for CREPE, where one batch in forty makes most of the error. Losses of MiniLM and CREPE tiny are not measured in float16, which is slow here, and of CREPE full its outputs in bfloat16 alone. Outputs of the experts are measured on 64 batches, as errors flip few of their choices in each. "
        f"The best edit is the best of all single ones that move an op to float32, each run.\n\n{table_of(rows)}\n\n{table(head, [line_of(case) for case in cases])}"
    )
    return Report("Advice", rows, text)


if __name__ == "__main__":
    run(__doc__, measure)
