"""Pickles that version 0.1 made when its modules lay in one folder still load, as what they were."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from habana_mp import hmp

FOLDER = Path(__file__).parent / "pickles"
POLICY = hmp.Policy.from_ops(lower=["mm", "linear"], fp32=["softmax"], name="kept")


def load(name: str) -> Any:
    return pickle.loads((FOLDER / f"{name}.pkl").read_bytes())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Policy", POLICY),
        ("OpRule", POLICY.rule("mm")),
    ],
)
def test_values(name, expected):
    assert load(name) == expected


def test_an_explanation():
    """Its texts are those of the version that wrote it, and notes are of the CPU."""
    texts = {"arguments": (), "notes": ()}
    found = load("explain")
    assert "float32, bfloat16 and float16 tensors" in found.arguments[0]
    assert dataclasses.replace(found, **texts) == dataclasses.replace(hmp.explain("mm", policy=POLICY), **texts)


def test_functions_and_classes():
    names = (
        "cast convert revert is_converted set_policies custom_fwd custom_bwd explain check_ranks presets"
        " autocast disable_casts Policy PolicyState CastReport report draw"
    )
    assert load("functions") == tuple(getattr(hmp, name) for name in names.split())


def test_a_report():
    report = load("CastReport")
    assert type(report) is hmp.CastReport
    assert report.casts("mm", to="bfloat16") == 2
    assert str(report.advice[0]) == str(load("advice")[0])
    assert load("diff") == report.diff(report)


def test_a_policy_for_a_checkpoint():
    assert load("PolicyState").state_dict() == hmp.PolicyState(POLICY).state_dict()


def test_policies_of_a_model_act():
    model = load("set_policies")
    x = torch.ones(1, 2)
    with hmp.autocast("cpu", policy="hpu-autocast"), hmp.report() as report:
        y = model(x)
    assert y.dtype is torch.float32  # the second module is "fp32"
    assert report.casts("linear", to="bfloat16", module="0") == 3
    with hmp.set_policies(model, {}):  # takes those of before off
        assert not [hook for module in model.modules() for hook in module._forward_pre_hooks.values()]


def test_scopes():
    with load("autocast"):
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is torch.bfloat16
        with load("disable_casts"):
            assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is torch.float32


def test_a_drawing():
    drawn = hmp.draw(torch.nn.Linear(2, 2), torch.ones(1, 2))
    assert load("Drawing").nodes == drawn.nodes
