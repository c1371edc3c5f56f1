"""What additions lose: numbers below half of a ulp of those that they are added to. Counted for each narrow dtype, and advised on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from habana_mp import hmp

HALF_ULPS = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "e4m3": 2.0**-4, "e5m2": 2.0**-3}  # of 1.0
NAMES = ("sums", "lost", *HALF_ULPS)


def absorbed(op, call):
    with hmp.report(values=True) as report:
        call()
    (row,) = (row for row in report.to_dict()["rows"] if row["op"] == op)
    return row["values"]["absorbed"]


@pytest.mark.parametrize("dtype", HALF_ULPS)
@pytest.mark.parametrize("times", [1, 50_000])  # more than one part of the loop
def test_a_number_is_lost_below_half_of_a_ulp_of_what_it_is_added_to(dtype, times):
    half = HALF_ULPS[dtype]
    to = torch.tensor([1.0, 1.0, -1.9, 2.0**100, 0.0, torch.inf, 1e-9, 1.0]).repeat(times)
    added = torch.tensor([half, half * 0.99, -half * 0.99, half * 2.0**99, 1.0, 1.0, 1.0, 0.0]).repeat(times)
    found = absorbed("add", lambda: to + added)
    assert (found["sums"], found[dtype]) == (6 * times, 3 * times)


@pytest.mark.parametrize(("dtype", "low"), [("bfloat16", torch.bfloat16), ("float16", torch.float16)])
def test_below_a_power_of_two_the_steps_are_half_as_large(dtype, low):
    to, added = torch.ones(64).to(low), torch.full((64,), HALF_ULPS[dtype] * 0.75).to(low)
    assert absorbed("sub", lambda: to - added)[dtype] == 0
    assert absorbed("add", lambda: to + added)["lost"] == 64
    assert absorbed("sub", lambda: to - added / 2)["lost"] == 64
    assert absorbed("add", lambda: -to + added)["lost"] == 0


def test_what_is_lost_is_counted_as_torch_loses_it():
    torch.manual_seed(0)
    to = torch.randn(10_000).bfloat16()
    added = (torch.randn(10_000) * torch.logspace(-6, 0, 10_000)).bfloat16()
    found = absorbed("add", lambda: to + added)
    assert found["lost"] == found["bfloat16"] == pytest.approx(((to + added) == to).sum().item(), abs=20)  # ties


ADDITIONS = {
    "add with alpha": ("add", lambda x, y: torch.add(x, y, alpha=2.0**-9)),
    "add_ in place": ("add_", lambda x, y: x.clone().add_(y, alpha=2.0**-9)),
    "sub": ("sub", lambda x, y: x - y * 2.0**-10),
    "addcmul": ("addcmul", lambda x, y: torch.addcmul(x, y, y, value=2.0**-9)),
    "addcdiv_ in place": ("addcdiv_", lambda x, y: x.clone().addcdiv_(y, y, value=2.0**-9)),
    "of a row to all rows": ("add", lambda x, y: x + y[:1] * 2.0**-9),
}


@pytest.mark.parametrize(("op", "call"), ADDITIONS.values(), ids=ADDITIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_additions(op, call, dtype):
    x, y = torch.ones(8, 8, dtype=dtype), torch.ones(8, 8, dtype=dtype)
    found = absorbed(op, lambda: call(x, y))
    lost = 64 if dtype == torch.bfloat16 else 0
    wanted = {"sums": 64, "lost": lost, "bfloat16": 64, "float16": 0, "e4m3": 64, "e5m2": 64}
    assert {name: found[name] for name in NAMES} == wanted


def test_ops_that_add_nothing_have_none():
    assert absorbed("mul", lambda: torch.ones(8) * 2) == dict.fromkeys(NAMES, 0)
    assert absorbed("add", lambda: torch.ones(8) + 1e-8) == dict.fromkeys(NAMES, 0)  # the eps of a norm


def trained(dtype):
    torch.manual_seed(0)
    model = nn.Linear(32, 32).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-5, foreach=False)
    with hmp.report(values=True) as report:
        model(torch.randn(8, 32).to(dtype)).float().square().mean().backward()
        optimizer.step()
    return report


def test_updates_of_weights_in_bfloat16_are_advised_on():
    """A learning rate of 1e-5 moves no weight above 0.004 in bfloat16: the layer does not learn, and nothing raises."""
    line = trained(torch.bfloat16).advice[0]
    assert line.text.startswith("keep in float32 what addcdiv_ updates: 9")
    assert line.text.endswith("% of the numbers that it adds are below half of a ulp, and lost")
    assert line.evidence.startswith("1,056 numbers; at ")
    assert "test_absorbed.py:" in line.evidence


def test_updates_of_weights_in_float32_are_not():
    assert not [line for line in trained(torch.float32).advice if "ulp" in line.text]


def test_a_mask_is_no_update():
    scores, mask = torch.randn(16, 16).bfloat16(), torch.full((16, 16), -1e9).triu(1).bfloat16()
    with hmp.report(values=True) as report:
        scores + mask
        mask + scores
        scores.add_(mask)
    assert not [line for line in report.advice if "ulp" in line.text]


def test_an_update_of_another_dtype_is_one():
    weights = torch.ones(256).bfloat16()
    with hmp.report(values=True) as report:
        weights.add_(torch.full((256,), 1e-5))
    assert "keep in float32 what add_ updates: 100 %" in report.advice[0].text
