"""Reports with values know what follows from ops that choose otherwise than in float32, with gradients on: experts, classes, codes.

Measured is the error of the same model in many batches; foretold is that of a report of a few.
"""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from habana_mp import hmp
from tests.evidence.choices.experts import (
    LOW,
    MIXES,
    NO_SOFTMAX,
    TOKENS,
    WIDTH,
    Experts,
    batch,
    by_best,
    by_loop,
    by_weights,
    measured,
    outputs_report,
    run,
    target,
)


@pytest.mark.parametrize("mix", MIXES)
def test_the_error_of_outputs_has_what_follows_from_choices(mix):
    model = Experts(mix)
    report = outputs_report(model, LOW)
    for foretold, policy in ((report.errors()["outputs"], LOW), (report.forecast(NO_SOFTMAX), NO_SOFTMAX)):
        assert foretold == pytest.approx(measured(model, policy, of_loss=False), rel=0.35)


@pytest.mark.parametrize("mix", [by_loop, by_best])
def test_so_has_that_of_a_loss(mix):
    model = Experts(mix)
    with hmp.report(values=True) as report:
        for number in range(24):
            functional.cross_entropy(run(model, LOW, number), target(number)).backward()
    (error,) = report.errors().values()
    assert error == pytest.approx(measured(model, LOW, of_loss=True, batches=96), rel=0.4)


def test_a_report_names_how_many_choices_differ():
    model = Experts(by_loop)
    report = outputs_report(model, LOW)
    text = next(line for line in str(report).splitlines() if "topk in Experts" in line)
    foretold = int(text.split("about ")[1].split(" of ")[0])
    assert "of 1,024 choices differ from those of float32" in text
    found = 0
    for number in range(4):
        x = batch(number)
        compared = hmp.compare(lambda x=x: model(x), None, LOW)
        found += sum(row.flipped for row in compared.flips() if row.op == "topk")
    assert foretold / 2 <= found <= foretold * 2
    assert "may choose otherwise" not in str(report)


def test_the_first_edit_is_that_of_the_router():
    """Its softmax rounds the numbers that experts are chosen by, and makes hardly any other error."""
    edits = outputs_report(Experts(by_loop), LOW).edits()
    assert edits[0].text == "+softmax:fp32"
    assert edits[0].error_after < 0.8 * edits[0].error


def test_choices_are_in_files_and_add_up(tmp_path):
    model = Experts(by_loop)
    first, second = outputs_report(model, LOW, 2), outputs_report(model, LOW, 2)
    first.to_json(tmp_path / "report.json")
    loaded = hmp.CastReport.load(tmp_path / "report.json")
    assert loaded.errors() == first.errors()
    data, both = first.to_dict(), hmp.CastReport.merged([first, second]).to_dict()
    assert [each["choice"]["choices"] for each in data["losses"]] == [512]
    assert [each["choice"]["choices"] for each in both["losses"]] == [1024]
    assert sum(each["count"] for each in data["losses"][0]["choice"]["margins"]) == 512


@pytest.mark.parametrize("field", ["choices", "seen", "measured", "otherwise", "margins", "passes"])
def test_a_file_with_choices_of_nothing_is_read(field, tmp_path):
    data = outputs_report(Experts(by_loop), LOW, 1).to_dict()
    (loss,) = data["losses"]
    (loss if field == "passes" else loss["choice"])[field] = [] if field == "margins" else 0
    path = tmp_path / "report.json"
    path.write_text(json.dumps(data))
    report = hmp.CastReport.load(path)
    assert math.isfinite(report.errors()["outputs"])
    assert "topk" in str(report)


class Keys(nn.Module):
    """A hard choice: nothing but places of rows comes from the product with the keys."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 8)
        self.keys, self.table = torch.randn(64, WIDTH), torch.randn(64, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.body(x))
        return self.head(h + self.table[torch.matmul(h, self.keys.t()).topk(2, -1).indices].mean(1))


def test_an_edit_of_what_decides_alone_is_advised():
    """It has no share of the error: no gradient comes to it."""
    model, policy = Keys(), hmp.Policy.from_ops(lower=["linear", "matmul"])
    report = outputs_report(model, policy, 8)
    first = report.edits()[0]
    assert first.text == "+matmul:fp32"
    assert first.error_after == pytest.approx(measured(model, policy.with_edits(first.text), of_loss=False), rel=0.35)
    assert "and more by what is chosen" in str(first)


class Balanced(Experts):
    """Something else reads the scores, too, in the low dtype."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.gate(x).softmax(-1)
        scores.mean(0)
        return self.head(x + self.mix(self, x, scores))


@pytest.mark.parametrize("kind", [Experts, Balanced])
def test_others_that_round_the_scores_do_not_choose(kind):
    policy = hmp.Policy.from_ops(lower=["linear", "softmax", "mean"])
    report = outputs_report(kind(by_weights), policy)
    wide = report.forecast(policy.with_edits("+softmax:fp32", "+linear:fp32"))
    assert wide < 0.02 * report.errors()["outputs"]


def by_max(self: Experts, x: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    weight, best = scores.max(-1, keepdim=True)
    return torch.bmm(x.unsqueeze(1), self.experts[best.squeeze(-1)]).squeeze(1) * weight


def test_the_largest_of_a_row_is_a_choice():
    model = Experts(by_max)
    assert outputs_report(model, LOW).errors()["outputs"] == pytest.approx(
        measured(model, LOW, of_loss=False), rel=0.35
    )


def test_choices_that_were_not_followed_count_as_those_that_were():
    model = Experts(by_loop)
    with hmp.report(values=True) as report:
        for number in range(4):
            outputs = run(model, LOW, number)
            if number % 2:
                outputs = functional.dropout(outputs, 0.1)  # nothing is followed through it
            report.project(outputs, k=16, seed=number)
    (choice,) = (each["choice"] for each in report.to_dict()["losses"])
    assert (choice["choices"], choice["seen"]) == (2 * TOKENS, 4 * TOKENS)
    assert "of 1,024 choices differ" in " ".join(str(report).split())


def test_what_dropout_makes_of_choices_is_not_known():
    model = Experts(by_loop)
    with hmp.report(values=True) as report, hmp.autocast("cpu", policy=LOW):
        functional.dropout(model(batch(0)), 0.5).float().square().mean().backward()
    assert "without what topk may choose otherwise" in str(report)


def test_gradients_of_two_losses_of_one_step():
    """Each has what its choices are worth."""
    model = Experts(by_loop)
    with hmp.report(values=True) as report:
        for number in range(12):
            outputs = run(model, LOW, number)
            functional.cross_entropy(outputs, target(number)).backward(retain_graph=True)
            outputs.square().mean().backward()
    worth = report.to_dict()["choices_worth"]
    assert len(worth) == 2
    assert all(each["otherwise"] == 12 * (TOKENS // 32) for each in worth)
    assert len(report.errors()) == 2
