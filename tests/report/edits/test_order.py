"""What the order of edits is by: errors of many passes, and time where two edits help nearly alike."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from habana_mp import hmp
from habana_mp._report.edits.edits import edits
from habana_mp._report.edits.simulated import Simulation
from habana_mp._report.edits.times import Times
from habana_mp._report.errors.objective import Objective
from habana_mp._report.form import report_of
from tests.report.edits.net import recorded
from tests.shared.fake_reports import loss, with_losses


class Heavy(nn.Module):
    """Three ops, whose weights bfloat16 rounds down alike."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)
        self.scale = nn.Parameter(torch.full((16,), 1.0039))
        for layer in (self.first, self.second):
            nn.init.constant_(layer.weight, 1.0039 / 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x)) * self.scale


@pytest.mark.parametrize(("passes", "off"), [(16, 0.1), (8, 0.1)])
def test_what_ops_change_in_all_passes_alike_adds_up(passes, off) -> None:
    """Independent changes of three ops would be foretold as 0.6 of what these are."""
    net, policy = Heavy(), hmp.Policy.from_ops(lower=["linear", "mul"])
    drawn = torch.Generator().manual_seed(0)
    batches = [torch.rand(8, 16, generator=drawn) for _ in range(passes)]
    changes = []
    with hmp.report(values=True) as report:
        for x in batches:
            with hmp.autocast("cpu", policy=policy):
                found = net(x).float().sum()
            found.backward()
            changes.append(found.item() - net(x).sum().item())
    measured = (sum(each**2 for each in changes) / passes) ** 0.5
    (foretold,) = report.errors().values()
    assert foretold == pytest.approx(measured, rel=off)
    by_presets = report.presets()
    assert by_presets["hmp"] == pytest.approx(measured, rel=0.2)  # the same ops, and no others here


def test_in_few_passes_signs_do_not_count() -> None:
    net = Heavy()
    with hmp.autocast("cpu", policy="hmp"), hmp.report(values=True) as report:
        net(torch.rand(8, 16, generator=torch.Generator().manual_seed(0))).float().sum().backward()
    (foretold,) = report.errors().values()
    changes = [report.loss_change(op) for op in ("linear", "mul")]
    assert foretold < abs(sum(changes))


@pytest.mark.parametrize(
    ("slower", "first"), [(0.95, "+linear:fp32"), (0.25, "+add:fp32")], ids=["nearly alike: less time", "more helps"]
)
def test_time_decides_between_edits_that_help_nearly_alike(slower, first) -> None:
    """``add`` helps most and takes more time than ``linear``, whose squared change is ``slower`` of its own."""
    values = recorded("hmp").to_dict()
    left = {"add": 1.0, "linear": slower}
    for row in values["rows"]:
        if "values" not in row:
            continue
        row["values"]["losses"] = [loss(left.pop(row["op"], 0.0))]
        row["values"] |= {"ran_seconds": 1e-3, "other_seconds": 1.0 if row["op"] == "add" else 1e-3}
    assert edits(report_of(with_losses(values)))[0].text == first


TIMES = {
    # forward ran, other, backward ran, other, of the optimizer; by how much longer the other dtype takes
    "the backward pass by its own times": ((1.0, 2.0, 5.0, 3.0, 0.0), -1.0),
    "where it was not measured, as the forward pass": ((1.0, 2.0, 0.0, 0.0, 0.0), 1.0 * (1 + 8 / 4)),
    "an optimizer has no backward pass": ((1.0, 2.0, 0.0, 0.0, 2.0), 1.0 * (1 + 8 / 2)),
}


@pytest.mark.parametrize("case", TIMES)
def test_the_time_of_an_edit_has_the_backward_pass(case) -> None:
    (ran, other, backward_ran, backward_other, optimizer), longer = TIMES[case]
    values = recorded("hmp").to_dict()
    values |= {"op_seconds": 4.0, "backward_seconds": 8.0, "optimizer_seconds": optimizer}
    for row in values["rows"]:
        row["casts"] = []
        if "values" in row:
            row["values"] |= {"ran_seconds": 0.0, "other_seconds": 1e-9}  # what every call takes is next to nothing
        if row["op"] == "linear":
            row["values"] |= {"ran_seconds": ran, "other_seconds": other}
            row["values"] |= {"backward_ran_seconds": backward_ran, "backward_other_seconds": backward_other}
    data = report_of(values)
    row = next(each for each in data.rows if each.op == "linear")
    assert Times(data).other(row) == pytest.approx(longer)


LONGEST = {
    # calls, backward calls, what was measured; by how much longer the other dtype takes
    "the first call": ((4, 0, {"ran_seconds": 10.3, "ran_longest": 10.0, "other_seconds": 0.8}), 0.4),
    "of the second runs": ((4, 0, {"ran_seconds": 0.4, "other_seconds": 10.6, "other_longest": 10.0}), 0.4),
    "not one of two alike": ((2, 0, {"ran_seconds": 0.5, "ran_longest": 0.3, "other_seconds": 0.9}), 0.4),
    "not the one that there is": ((1, 0, {"ran_seconds": 0.5, "ran_longest": 0.5, "other_seconds": 0.9}), 0.4),
    "in the backward pass": (
        (3, 6, {"other_seconds": 1e-9, "backward_ran_seconds": 9.5, "backward_ran_longest": 9.0}),
        0.9 - 0.6,
    ),
    "not the large one of each pass": (
        (3, 6, {"other_seconds": 1e-9, "backward_ran_seconds": 0.6, "backward_ran_longest": 0.18}),
        0.9 - 0.6,
    ),
}


@pytest.mark.parametrize("case", LONGEST)
def test_a_call_that_took_far_longer_than_the_others_does_not_count(case) -> None:
    (calls, backward_calls, measured), longer = LONGEST[case]
    values = recorded("hmp").to_dict()
    for row in values["rows"]:
        row["casts"] = []
        if "values" in row:
            row["values"] |= dict.fromkeys((name for name in row["values"] if name.endswith("longest")), 0.0)
            row["values"] |= {"ran_seconds": 0.0, "other_seconds": 1e-9}
            row["values"] |= {"backward_ran_seconds": 0.0, "backward_other_seconds": 0.0}
        if row["op"] == "linear":
            row["values"] |= {"calls": calls, "backward_calls": backward_calls} | measured
            row["values"]["backward_other_seconds"] = 0.9 if backward_calls else 1e-9
    data = report_of(values)
    row = next(each for each in data.rows if each.op == "linear")
    assert Times(data).other(row) == pytest.approx(longer, abs=1e-6)


def test_the_time_of_measuring_is_no_time_of_a_step() -> None:
    net, x = Between(), torch.randn(256, 64)
    began = time.perf_counter()
    with hmp.autocast("cpu", policy="hmp"), hmp.report(values=True) as report:
        for _ in range(4):
            net(x).backward()
            report.step()
    whole = time.perf_counter() - began
    counted = report.to_dict()
    steps = sum(counted["steps"])
    second_runs = sum(
        row["values"]["other_seconds"] + row["values"]["backward_other_seconds"]
        for row in counted["rows"]
        if "values" in row
    )
    assert 0 < steps <= counted["seconds"] < whole - second_runs
    linear = next(row for row in counted["rows"] if row["op"] == "linear")["values"]
    assert 0 < linear["ran_seconds"] + linear["backward_ran_seconds"] < steps
    assert linear["backward_other_seconds"] > 0


class Between(nn.Module):
    """An op between two layers, whose results the second one rounds anyway."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).exp()).square().mean()


@pytest.mark.parametrize(("before", "after"), [("fp32", "lower"), ("lower", "fp32")])
@pytest.mark.parametrize("passes", [7, 8])
def test_what_is_rounded_anyway_is_no_change_in_all_passes(before, after, passes) -> None:
    torch.manual_seed(0)
    net, x = Between(), torch.randn(32, 64)
    lists = {"lower": ["linear"], "fp32": ["mean", "square"]}
    lists[before] = [*lists[before], "exp"]
    policy = hmp.Policy.from_ops(**lists)

    def recorded(policy):
        with hmp.autocast("cpu", policy=policy), hmp.report(values=True) as report:
            for _ in range(passes):
                net(x).backward()
        return report

    report = recorded(policy)
    data = report._data()
    row = next(number for number, each in enumerate(data.rows) if each.op == "exp")
    effect = Simulation(data).effect({row: {"fp32": "float32", "lower": "bfloat16"}[after]})
    (foretold,) = Objective(data).errors(effect.left, effect.low).values()
    (measured,) = recorded(policy.with_edits(f"+exp:{after}")).errors().values()
    assert foretold == pytest.approx(measured, rel=0.2)
