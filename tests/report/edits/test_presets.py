"""What reports foretell beside what is measured (38): presets whose rest is float32, ops in two dtypes in one module, layers made of ops, edits for speed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from habana_mp import hmp

torch.manual_seed(0)
LINEAR = nn.Linear(64, 64)
BATCHES = [torch.randn(256, 64, generator=torch.Generator().manual_seed(seed)) * 3 for seed in range(8)]
NODES = torch.arange(256) // 16


def off(step: Callable[[torch.Tensor], torch.Tensor], policy: hmp.Policy | str) -> float:
    """The error of the outputs of all batches, relative."""
    with torch.no_grad():
        exact = torch.cat([step(x) for x in BATCHES])
        with hmp.autocast("cpu", policy=policy):
            found = torch.cat([step(x) for x in BATCHES]).float()
    return ((found - exact).norm() / exact.norm()).item()


def report_of(step: Callable[[torch.Tensor], torch.Tensor], policy: hmp.Policy | str) -> hmp.CastReport:
    with hmp.autocast("cpu", policy=policy), hmp.report(values=True) as report:
        for seed, x in enumerate(BATCHES):
            report.project(step(x), k=16, seed=seed)
    return report


STEPS = {
    "logsumexp": lambda x: LINEAR(x).logsumexp(1),
    "silu": lambda x: nn.functional.silu(LINEAR(x)),
    "sum": lambda x: LINEAR(x).sum(1),
    "index_add": lambda x: (y := LINEAR(x)).new_zeros(16, 64).index_add(0, NODES, y),
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("start", ["balanced", "torch-cpu"])
def test_a_preset_whose_rest_is_float32_is_foretold(name, start) -> None:
    """It was foretold as if what is in none of its lists kept its dtype: four times too much after logsumexp."""
    step = STEPS[name]
    foretold = report_of(step, start).presets()
    for preset in ("hmp-o2", "torch-cpu", "balanced"):
        assert foretold[preset] == pytest.approx(off(step, preset), rel=0.25)


class Tagger(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layers, self.out = kind(16, 24, 2, batch_first=True, bidirectional=True), nn.Linear(48, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layers(x)[0])


@pytest.mark.parametrize("preset", hmp.presets())
@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN, nn.MultiheadAttention])
def test_of_the_preset_that_ran_what_it_has_is_foretold(kind, preset) -> None:
    """A GRU under hmp-o2: an error of 0.0063, and 0.0029 for hmp-o2. The linear layers in it stay low where the rest is in float32."""
    torch.manual_seed(0)
    if kind is nn.MultiheadAttention:
        step = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        x = torch.randn(4, 12, 32)
    else:
        step, x = Tagger(kind), torch.randn(4, 12, 16)
    with hmp.autocast("cpu", policy=preset), hmp.report(values=True) as report:
        report.project(step(x))
    assert report.forecast(preset) == pytest.approx(report.errors()["outputs"], rel=1e-6)


def test_an_op_in_two_dtypes_in_one_module_is_foretold() -> None:
    """One call is given bfloat16, one float32: torch-cpu runs the first in bfloat16. It was foretold to run none."""

    def step(x):
        return LINEAR(x).sum(1) + x.sum(1)

    foretold = report_of(step, "balanced").presets()
    assert foretold["torch-cpu"] == pytest.approx(off(step, "torch-cpu"), rel=0.1)


@pytest.mark.parametrize("inputs", ["of a layer", "without a gradient"])
def test_a_scale_that_is_nearly_1_rounds_what_is_in_float32_to_both_sides(inputs) -> None:
    """Numbers of bfloat16 times 0.993 are all rounded to one side: the change of the loss was foretold seven times too large."""
    torch.manual_seed(0)
    layer, scale = nn.Linear(64, 8), torch.full((64,), 0.993, requires_grad=True)
    with torch.no_grad():
        layer.weight.abs_()
    batches = [(x / 3).abs().requires_grad_(inputs == "of a layer") for x in BATCHES]

    def loss_of(x):
        return layer(scale * (x * 1.37)).double().sum()

    with hmp.autocast("cpu", policy="hmp"), hmp.report(values=True) as report:
        for x in batches:
            loss_of(x).backward()
    with torch.no_grad():
        exact = torch.stack([loss_of(x) for x in batches])
        with hmp.autocast("cpu", policy="balanced"):
            found = torch.stack([loss_of(x) for x in batches])
    # A loss is one number of each batch: eight of them have a mean by chance.
    measured = (found - exact).square().mean().sqrt().item()
    assert 0.5 * measured < report.presets()["balanced"] < 2 * measured


@pytest.mark.parametrize("layer", [nn.GRU, nn.LSTM, nn.RNN])
@pytest.mark.parametrize("start", ["balanced", "hmp"])
def test_a_layer_in_float32_has_no_error_once_its_products_have_none(layer, start) -> None:
    """The row of the layer kept what its own ops rounded between products in bfloat16."""
    torch.manual_seed(0)
    recurrent, head = layer(64, 32, batch_first=True), nn.Linear(32, 8)

    def step(x):
        return head(recurrent(x.view(16, 16, 64))[0])

    policy, texts = hmp.Policy.load(start), []
    edits = [each for each in report_of(step, start).edits() if each.text.endswith(":fp32")]
    assert edits
    for edit in edits:
        texts.append(edit.text)
        measured = off(step, policy.with_edits(*texts))
        assert edit.error_after == pytest.approx(measured, rel=0.35, abs=1e-5)


def test_no_edit_for_speed_brings_the_error_back() -> None:
    """Behind ``+linear:fp32``, ``index_add`` in bfloat16 would cost casts, and all of the error."""
    found = report_of(STEPS["index_add"], "balanced").edits()
    assert [each.text for each in found] == ["+linear:fp32"]
    left = off(STEPS["index_add"], hmp.Policy.load("balanced").with_edits(*found))
    assert left < 1e-6


def test_what_is_written_in_place_keeps_its_dtype_where_the_rest_is_float32() -> None:
    other = nn.Linear(64, 64)

    def step(x):
        y = LINEAR(x)
        y.add_(1.37)
        y.mul_(1.1)
        return other(y)

    assert report_of(step, "balanced").presets()["hmp-o2"] == pytest.approx(off(step, "hmp-o2"), rel=0.25)
