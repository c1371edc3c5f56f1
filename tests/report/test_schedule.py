"""hmp.report(wait=, warmup=, active=): which steps of a training are counted; and where the time of a step goes."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from habana_mp import hmp

X = torch.ones(2, 4)


def run(steps, **schedule):
    model = nn.Linear(4, 4)
    seen = []
    with hmp.autocast("cpu", policy="torch-cpu"), hmp.report(**schedule) as report:
        for _ in range(steps):
            model(X)
            report.step()
            seen.append(torch.ones(1))
    return report


@pytest.mark.parametrize(
    ("schedule", "steps", "counted"),
    [
        ({}, 3, 3),
        ({"wait": 2}, 5, 3),
        ({"warmup": 2}, 5, 3),
        ({"active": 2}, 5, 2),
        ({"wait": 1, "warmup": 1, "active": 2}, 9, 2),
        ({"wait": 1, "warmup": 1, "active": 2}, 3, 1),
    ],
    ids=str,
)
def test_the_active_steps_are_counted(schedule, steps, counted):
    report = run(steps, **schedule)
    calls = sum(row["calls"] for row in report.to_dict()["rows"] if row["op"] == "linear")
    assert calls == counted
    assert len(report.to_dict()["steps"]) == counted
    assert report.casts("linear") == 3 * counted
    assert sum(report.to_dict()["steps"]) <= report.to_dict()["seconds"] * 1.01
    assert copy.deepcopy(report).casts() == pickle.loads(pickle.dumps(report)).casts() == report.casts()


def test_too_few_steps_are_said():
    report = run(2, wait=2, warmup=1)
    with pytest.raises(
        RuntimeError, match=r"2 steps ended in the block, and counting begins after 3 \(wait and warmup\)"
    ):
        report.casts()


def test_a_report_that_waits_looks_at_nothing():
    with hmp.report(wait=1) as report:
        assert not hmp.is_converted()
        with pytest.raises(RuntimeError, match="nothing has been counted"):
            report.casts()
        report.step()
        assert report.casts() == 0
    assert report.to_dict()["rows"] == []


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        ({"wait": -1}, "wait must be a number of steps, 0 or more, not -1"),
        ({"warmup": 1.5}, "warmup must be a number of steps, 0 or more, not 1.5"),
        ({"active": 0}, "active must be a number of steps, 1 or more, or None for all, not 0"),
        ({"active": True}, "active must be a number of steps"),
    ],
    ids=str,
)
def test_what_is_no_number_of_steps(schedule, said):
    with pytest.raises(ValueError, match=said):
        hmp.report(**schedule)


def test_step_outside_of_the_block():
    report = hmp.report()
    with pytest.raises(RuntimeError, match="inside the with block"):
        report.step()
    with report:
        pass
    with pytest.raises(RuntimeError, match="inside the with block"):
        report.step()


@pytest.mark.parametrize("raises", [False, True], ids=["returns", "raises"])
def test_ops_of_optimizers_are_told_from_the_others(raises):
    model = nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.ones(8, 64)
    with hmp.report() as report:
        model(x).sum().backward()
        assert report.to_dict()["optimizer_seconds"] == 0
        if raises:
            with pytest.raises(ZeroDivisionError):
                optimizer.step(lambda: 1 / 0)
            before = report.to_dict()["optimizer_seconds"]
            model(x)  # what a module does is no more of the step
            torch.exp(torch.ones(1 << 16))
            assert report.to_dict()["optimizer_seconds"] == before
        else:
            optimizer.step()
            inside = report.to_dict()["optimizer_seconds"]
            torch.exp(torch.ones(1 << 16))
            assert report.to_dict()["optimizer_seconds"] == inside > 0


def test_memory_of_results_by_dtype():
    with hmp.autocast("cpu", policy="torch-cpu"), hmp.report() as report:
        nn.Linear(4, 8)(X)
        torch.ones(3, dtype=torch.float64)
        torch.ones(5, dtype=torch.int64)
        X.view(8)
    made = {row["op"]: row["made_bytes"] for row in report.to_dict()["rows"] if row["made_bytes"]}
    assert made["linear"] == {"bfloat16": 2 * 8 * 2}
    assert made["ones"] == {"float64": 3 * 8}
    assert "view" not in made
