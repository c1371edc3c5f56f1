"""What additions lose: numbers below half of a ulp of those that they are added to. Counted for each narrow dtype, and advised on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from habana_mp import hmp

HALF_ULPS = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "e4m3": 2.0**-4, "e5m2": 2.0**-3}  # of 1.0
NAMES = ("sums", *HALF_ULPS)


def absorbed(op, call):
    with hmp.report(values=True) as report:
        call()
    (row,) = (row for row in report.to_dict()["rows"] if row["op"] == op)
    return row["values"]["absorbed"]


@pytest.mark.parametrize("dtype", HALF_ULPS)
@pytest.mark.parametrize("times", [1, 50_000])  # more than one part of the loop
def test_the_smaller_number_is_lost_below_half_of_a_ulp(dtype, times):
    half = HALF_ULPS[dtype]
    larger = torch.tensor([1.0, 1.0, -1.9, 2.0**100, 0.0, torch.inf]).repeat(times)
    smaller = torch.tensor([half, half * 0.99, half * 0.99, half * 2.0**99, 1.0, 1.0]).repeat(times)
    for a, b in ((larger, smaller), (smaller, larger), (larger, -smaller)):
        found = absorbed("add", lambda a=a, b=b: a + b)
        assert (found["sums"], found[dtype]) == (4 * times, 3 * times)


ADDITIONS = {
    "add with alpha": ("add", lambda x, y: torch.add(x, y, alpha=2.0**-9)),
    "add_ in place": ("add_", lambda x, y: x.clone().add_(y, alpha=2.0**-9)),
    "sub": ("sub", lambda x, y: x - y * 2.0**-9),
    "addcmul": ("addcmul", lambda x, y: torch.addcmul(x, y, y, value=2.0**-9)),
    "addcdiv_ in place": ("addcdiv_", lambda x, y: x.clone().addcdiv_(y, y, value=2.0**-9)),
    "of a row to all rows": ("add", lambda x, y: x + y[:1] * 2.0**-9),
}


@pytest.mark.parametrize(("op", "call"), ADDITIONS.values(), ids=ADDITIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_additions(op, call, dtype):
    x, y = torch.ones(8, 8, dtype=dtype), torch.ones(8, 8, dtype=dtype)
    found = absorbed(op, lambda: call(x, y))
    assert {name: found[name] for name in NAMES} == {"sums": 64, "bfloat16": 64, "float16": 0, "e4m3": 64, "e5m2": 64}


def test_ops_that_add_nothing_have_none():
    assert absorbed("mul", lambda: torch.ones(8) * 2) == dict.fromkeys(NAMES, 0)


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
    assert line.text.startswith("hold in float32 what addcdiv_ adds to: ")
    assert line.text.endswith("of what it adds is lost in bfloat16, below half of a ulp")
    assert line.evidence.startswith("1,056 numbers; at ")
    assert "test_absorbed.py:" in line.evidence


def test_updates_of_weights_in_float32_are_not():
    assert not [line for line in trained(torch.float32).advice if "ulp" in line.text]
