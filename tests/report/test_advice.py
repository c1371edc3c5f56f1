"""The advice of a report: in words that are right for one and for many, with the share that the tables show, and where it is."""

from __future__ import annotations

import fake_reports
import pytest
import torch

from habana_mp import hmp
from habana_mp._report.findings.advice import with_advice
from habana_mp._report.form import report_of


@pytest.mark.parametrize(("count", "said"), [(1, "1 time"), (1100, "1,100 times")])
def test_ping_pong(count, said):
    ops = [{"op": op, "module": "", "dtype": "bfloat16"} for op in ("linear", "softmax")]
    chain = {"ops": ops, "path": ["float32", "bfloat16", "float32"], "count": count, "seconds": 0.5}
    times = {"seconds": 10.0, "op_seconds": 1.0, "backward_seconds": 0.0}
    (line,) = with_advice(report_of(fake_reports.empty(**times, ping_pong=[chain]))).advice
    assert line.text == f"linear -> softmax: float32 -> bfloat16 -> float32, there and back {said}, 5.0 % of the block"


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
    found = next(each for each in with_advice(report_of(report)).advice if each.text.startswith("linear -> mul"))
    assert found.evidence.startswith("lower: linear, custom+edits; fp32: mul, custom+edits; in ")
