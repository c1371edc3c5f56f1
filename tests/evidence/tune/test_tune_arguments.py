"""Arguments of hmp.tune as other packages make them, and a metric that is no number: what is wrong is named."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest
import torch
from planted_faults import Model, X
from torch import nn

from habana_mp import hmp


def tuned(budget=1e-2, **options):
    model = Model("cos")
    return hmp.tune(lambda: model(X), budget, cost="numbers", **options)


@pytest.mark.parametrize(
    "budget", [np.float32(0.01), np.float64(0.01), np.float16(0.01), Fraction(1, 100)], ids=lambda each: type(each).__name__
)  # fmt: skip
def test_a_budget_may_be_any_real_number(budget):
    found = tuned(budget)
    assert (type(found.budget), found.budget) == (float, float(budget))
    assert found.policy == tuned(float(budget)).policy


@pytest.mark.parametrize(
    "budget", [np.float32("nan"), np.float32(0), np.float64("inf"), np.bool_(True), "0.01", 0.01j, None], ids=repr
)
def test_no_budget(budget):
    with pytest.raises(ValueError, match=f"budget must be .*above 0 and below 1, not {re.escape(repr(budget))}"):
        tuned(budget)


def test_a_seed_may_be_one_of_numpy(tmp_path):
    found = tuned(seed=np.int64(3), resume=tmp_path / "s.json")
    assert found.policy == tuned(seed=3, resume=tmp_path / "s.json").policy
    with pytest.raises(TypeError, match=r"seed must be a whole number, not np\.float64"):
        tuned(seed=np.float64(3))


def test_a_metric_that_returns_nan_is_named():
    with pytest.raises(ValueError, match=r"^the metric returns nan for the results in float32 and the same results"):
        tuned(metric=lambda exact, low: float("nan"))
    assert tuned(metric=lambda exact, low: (exact - low).abs().max()).error <= 1e-2


@pytest.mark.parametrize("number", [np.int64(1), np.int8(1)], ids=["int64", "int8"])
def test_steps_and_sums_of_a_report_may_be_numbers_of_numpy(number):
    model = Model("cos")
    with hmp.autocast("cpu"), hmp.report(values=True, wait=number - 1, warmup=number - 1, active=number) as report:
        report.project(model(X.clone().requires_grad_()), k=number)
        report.step()
    assert report.error_share() == 1


def test_a_norm_held_in_bfloat16_is_named_with_the_cure():
    """The float32 run gives it a float32 input, which torch refuses beside its weights and running statistics."""
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2)).to(torch.bfloat16)
    x = torch.randn(2, 1, 4, 4, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match="mixed dtype") as caught:
        hmp.tune(lambda: model(x).float().square().mean(), 0.1, cost="numbers")
    assert "batch_norm" in caught.value.__notes__[0]
    assert "norm.float()" in caught.value.__notes__[0]
    model[1].float()
    hmp.tune(lambda: model(x).float().square().mean(), 0.1, cost="numbers")
