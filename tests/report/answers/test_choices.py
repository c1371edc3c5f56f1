"""What ops choose by numbers that are off: counted where no gradient is made, named elsewhere."""

from __future__ import annotations

import pytest
import torch

from habana_mp import hmp

POLICY = hmp.Policy.from_ops(lower=["mm"], name="products")

CHOICES = {
    "topk": (lambda y: y.topk(2, -1).indices, 256),  # what it takes of a row is one choice
    "argmax": (lambda y: y.argmax(-1), 256),
    "sort": (lambda y: y.sort(-1).indices, 256 * 64),
    "gt": (lambda y: y > 0, 256 * 64),
    "max": (lambda y: y.max(-1).indices, 256),
}


def random(*size):
    return torch.randn(*size, generator=torch.Generator().manual_seed(0))


def router(op):
    return lambda: CHOICES[op][0](torch.mm(random(256, 64), random(64, 64)))


@pytest.mark.parametrize("op", CHOICES)
def test_choices_that_differ_are_those_of_compare(op):
    with torch.no_grad(), hmp.autocast("cpu", policy=POLICY), hmp.report(values=True) as report:
        router(op)()
    (row,) = (each for each in report.rows if each.op == op)
    (compared,) = hmp.compare(router(op), None, POLICY).flips()
    assert (row.flipped, row.choices) == (compared.flipped, compared.choices)
    assert row.choices == CHOICES[op][1]
    assert row.flipped > 0
    text = f"{op}: {row.flipped:,} of {row.choices:,} choices differ"
    assert text in " ".join(str(report).split())
    assert f"{row.flipped:,} of {row.choices:,} choices differ" in repr(row)


def test_what_float32_chooses_does_not_differ():
    with torch.no_grad(), hmp.autocast("cpu", policy=hmp.Policy.from_ops(lower=[])), hmp.report(values=True) as report:
        router("argmax")()
    assert not any(row.choices for row in report.rows)
    assert not [each for each in report.advice if "choices" in each.text]


@pytest.mark.parametrize("op", ["topk", "sort"])
def test_with_gradients_an_op_that_chooses_is_named(op):
    """How often it does is estimated where it is followed, or the head says that it is not."""
    weight = random(64, 64).requires_grad_()
    with hmp.autocast("cpu", policy=POLICY), hmp.report(values=True) as report:
        y = torch.mm(random(256, 64), weight)
        (y.topk(2, -1) if op == "topk" else y.sort(-1)).values.float().sum().backward()
    (line,) = (each for each in report.advice if each.text.startswith(f"{op}: "))
    (head,) = (line for line in str(report).splitlines() if line.startswith("error of the loss "))
    if op == "topk":
        assert "of 256 choices differ" in line.text
        assert "choose" not in head
    else:
        assert "compare" in line.evidence
        assert ", without what sort may choose" in head
