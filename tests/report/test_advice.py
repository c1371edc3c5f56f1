"""The advice of a report: in words that are right for one and for many, with the share that the tables show, and where it is."""

from __future__ import annotations

import re

import fake_reports
import pytest
import torch
from torch.nn import functional as F

from habana_mp import hmp
from habana_mp._report.findings.advice import advice
from habana_mp._report.form import report_of

LINE = torch.nn.Linear(64, 64)


def loss(times: int) -> None:
    for _ in range(times):
        F.cross_entropy(torch.randn(8, 4, dtype=torch.bfloat16), torch.zeros(8, dtype=torch.long))


def both_ways(times: int) -> None:
    """In float32, then in bfloat16 and back."""
    x = torch.randn(64, 64)
    for _ in range(times):
        F.softmax(LINE(x), -1)


@pytest.mark.parametrize(
    ("function", "times", "op", "expected"),
    [
        (loss, 1, "cross_entropy", r"cross_entropy: 1 cast, bfloat16 -> float32, \S+ % of the block"),
        (loss, 1100, "cross_entropy", r"cross_entropy: 1,100 casts, bfloat16 -> float32, \S+ % of the block"),
    ],
    ids=["a cast", "casts"],
)
def test_one_and_many(function, times, op, expected):
    hmp.convert()
    with hmp.report() as r:
        function(times)
    (found,) = [line.text for line in r.advice if op in line.text]
    assert re.fullmatch(expected, found)


@pytest.mark.parametrize(("count", "said"), [(1, "1 time"), (1100, "1,100 times")])
def test_ping_pong(count, said):
    ops = [{"op": op, "module": "", "dtype": "bfloat16"} for op in ("linear", "softmax")]
    chain = {"ops": ops, "path": ["float32", "bfloat16", "float32"], "count": count, "seconds": 0.5}
    times = {"seconds": 10.0, "op_seconds": 1.0, "backward_seconds": 0.0}
    (line,) = advice(report_of(fake_reports.empty(**times, ping_pong=[chain])))
    assert line.text == f"linear -> softmax: float32 -> bfloat16 -> float32, there and back {said}, 5.0 % of the block"


def test_the_share_is_that_of_the_table():
    hmp.convert()
    with hmp.report() as r:
        both_ways(3)
    of_linear = next(line.text for line in r.advice if line.text.startswith("linear: "))
    shown = re.search(r", (\S+) % of the block", of_linear)[1]
    assert re.search(rf"^linear .* {shown} %", str(r), re.MULTILINE)


def test_what_no_module_calls_is_found_by_its_line():
    hmp.convert()
    with hmp.report() as r:
        loss(1)
    (line,) = r.advice
    assert re.fullmatch(rf"fp32: cross_entropy, lists/hmp/fp32.txt:\d+; at {re.escape(__file__)}:\d+", line.evidence)


class Twice(torch.nn.Module):
    def forward(self, x):
        return x.mul(2.0)


def test_a_chain_names_the_rule_of_its_modules():
    """Outside of the module the op has another rule."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), Twice(), torch.nn.Linear(64, 64), torch.nn.Flatten())
    policy = hmp.Policy.from_ops(lower=["linear"], promote=["mul"]).with_edits("+mul in 1:fp32")
    hmp.set_policies(model, policy)
    x = torch.randn(64, 64)
    with hmp.autocast("cpu", policy=policy), hmp.report() as r:
        x.mul(2.0)
        for _ in range(20):
            model(x)
    report = r.to_dict()
    for chain in report["ping_pong"]:
        chain["seconds"] = report["seconds"]  # worth a line, whatever the machine does beside
    found = next(each for each in advice(report_of(report)) if each.text.startswith("linear -> mul"))
    assert found.evidence.startswith("lower: linear, custom+edits; fp32: mul, custom+edits; in ")
