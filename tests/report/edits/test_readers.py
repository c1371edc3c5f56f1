"""A float32 result that several ops read is rounded by those that cast it back: what that changes follows from the gradient of each reader."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F

from habana_mp import hmp
from habana_mp._report.data import Report
from habana_mp._report.edits.simulated import Simulation
from habana_mp._report.errors.objective import Objective
from habana_mp._report.form import report_of

PASSES = 6
WIDE = hmp.Policy.from_ops(fp32=["linear", "mul", "sub"])
LOW = hmp.Policy.from_ops(lower=["linear", "mul"], fp32=["sub"])  # mul reads low numbers, sub casts them
MIXED = hmp.Policy.from_ops(lower=["mul"], fp32=["linear", "sub"])  # mul casts what sub reads as it is

Form = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]  # what mul and sub are given


def both(h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return h, h


FORMS: dict[str, Form] = {
    "the result": lambda h: (h, h),
    "views": lambda h: (h.transpose(0, 1).unsqueeze(0), h.view(2, -1)),
    "parts": lambda h: (h[:, ::2], h[:, 1:]),
    "an expanded view": lambda h: (h.unsqueeze(0).expand(3, -1, -1), h),
    "read twice": lambda h: (torch.cat([h, h]), h),
    "behind relu": lambda h: (torch.relu(h), h),
    "both behind relu": lambda h: both(torch.relu(h)),
    "both behind cat": lambda h: both(torch.cat([h, h])),
    "both behind a copy": lambda h: both(h.mT.contiguous()),
    "behind two": lambda h: both(torch.relu(torch.cat([h, h]))),
}


def numbers(like: torch.Tensor) -> torch.Tensor:
    """That bfloat16 holds."""
    return torch.randn(like.shape).bfloat16().double()


@contextmanager
def autocast(policy: hmp.Policy) -> Iterator[None]:
    with hmp.autocast("cpu", policy=policy):
        yield


@contextmanager
def convert(policy: hmp.Policy) -> Iterator[None]:
    hmp.convert(policy=policy)
    try:
        yield
    finally:
        hmp.revert()


class Step:
    """A loss that is linear in what two ops read of one result, so that the first order is all of it."""

    def __init__(self, form: str = "the result", *, by_mul: float = 1.0, by_sub: float = 1.0) -> None:
        self._form, self._by_mul, self._by_sub = form, by_mul, by_sub

    def loss(self, number: int, region: Callable[[hmp.Policy], object], policy: hmp.Policy) -> torch.Tensor:
        torch.manual_seed(number)
        x, weight = torch.randn(8, 16), torch.randn(16, 16, requires_grad=True)
        with region(policy):  # type: ignore[attr-defined]
            to_mul, to_sub = FORMS[self._form](F.linear(x, weight))
            made, taken = torch.mul(to_mul, 2.0), torch.sub(to_sub, 0.0)
        u = numbers(made)
        v = u if made.shape == taken.shape else numbers(taken)
        return self._by_mul * (made.double() / 2 * u).sum() + self._by_sub * (taken.double() * v).sum()

    def report(self, policy: hmp.Policy, region: Callable[[hmp.Policy], object] = autocast) -> hmp.CastReport:
        with hmp.report(values=True) as report:
            for number in range(PASSES):
                self.loss(number, region, policy).backward()
        return report

    def measured(self, policy: hmp.Policy) -> float:
        with torch.no_grad():
            off = [self.loss(i, autocast, policy) - self.loss(i, autocast, WIDE) for i in range(PASSES)]
        return math.hypot(*off) / math.sqrt(PASSES)


def foretold(report: hmp.CastReport, dtype: str) -> float:
    """The error with linear in this dtype."""
    return foretold_of(report_of(report.to_dict()), dtype)


def foretold_of(data: Report, dtype: str) -> float:
    rows = [number for number, row in enumerate(data.rows) if row.op == "linear"]
    effect = Simulation(data).effect(dict.fromkeys(rows, dtype))
    (error,) = Objective(data).errors(effect.left, effect.low).values()
    return error


@pytest.mark.parametrize("region", [autocast, convert])
@pytest.mark.parametrize(
    ("by_mul", "by_sub"),
    [(1, 1), (1, -1), (1, 0.125), (0.125, 1), (1, 0), (0, 1)],
    ids=["alike", "they cancel", "most by mul", "most by sub", "mul alone", "sub alone"],
)
def test_the_error_that_is_left_in_float32_is_exact(region, by_mul, by_sub):
    step = Step(by_mul=by_mul, by_sub=by_sub)
    assert foretold(step.report(LOW, region), "float32") == pytest.approx(step.measured(MIXED), rel=0.02, abs=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_the_readers_of_views_are_known(form):
    step = Step(form, by_sub=-0.5)
    assert foretold(step.report(LOW), "float32") == pytest.approx(step.measured(MIXED), rel=0.02)


@pytest.mark.parametrize(
    ("by_mul", "by_sub"), [(1, 1), (1, -1), (1, 0.125), (0.125, 1)], ids=["alike", "they cancel", "by mul", "by sub"]
)
def test_what_a_low_reader_rounds_already_does_not_count_twice(by_mul, by_sub):
    step = Step(by_mul=by_mul, by_sub=by_sub)
    # Of the rounding and the computation of linear, which are independent.
    assert foretold(step.report(MIXED), "bfloat16") == pytest.approx(step.measured(LOW), rel=0.25, abs=1e-4)


class Heads(torch.nn.Module):
    """One result that many modules read, as of the embedding of the time in a UNet. In a module of its own, so that each is a row."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.stem = torch.nn.Linear(16, 16, bias=False)
        self.heads = torch.nn.ModuleList(torch.nn.Linear(16, 16, bias=False) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.stem(x)
        return torch.stack([head(h) for head in self.heads]).sum(0)


@pytest.mark.parametrize("count", [15, 17, 40])
def test_many_readers(count):
    torch.manual_seed(0)
    model, x = Heads(count), torch.randn(64, 16)
    with hmp.report(values=True) as report:
        with hmp.autocast("cpu", policy=hmp.Policy.from_ops(lower=["linear"])):
            out = model(x)
        report.project(out, k=8)
    data = report_of(report.to_dict())
    (stem,) = (number for number, row in enumerate(data.rows) if row.module.endswith("stem"))
    left = Simulation(data).effect({stem: "float32"}).left[stem]
    whole = data.rows[stem].measured.projected_rounding
    assert Objective(data)._rounding(stem, None, left.rounded) == pytest.approx(whole, rel=0.01)


def test_ops_that_read_each_other_are_looked_at_once():
    """Each path through them took its time: of twelve there are more than a second has microseconds."""

    def run(policy):
        with hmp.autocast("cpu", policy=policy):
            h = F.linear(torch.randn(8, 16), torch.randn(16, 16, requires_grad=True))
            for _ in range(3):
                for op in (torch.relu, torch.clone, torch.Tensor.contiguous, lambda x: torch.roll(x, 1)):
                    h = op(torch.cat([h, op(h)])[:8])
                h = torch.stack([h, h.flip(0)])[0] + torch.where(h > 0, h, h.index_select(0, torch.arange(8)))
            return torch.mul(h, 2.0)

    with hmp.report(values=True) as report:
        run(LOW).float().sum().backward()
    assert foretold(report, "float32") >= 0


def test_readers_are_known_of_outputs_too():
    torch.manual_seed(0)
    x, weight = torch.randn(64, 16), torch.randn(16, 16, requires_grad=True)

    def out(policy):
        with hmp.autocast("cpu", policy=policy):
            h = F.linear(x, weight)
            return torch.sub(torch.mul(h, 2.0), h)

    with hmp.report(values=True) as report:
        report.project(out(LOW), k=64)
    exact = out(WIDE)
    measured = (out(MIXED) - exact).norm().item() / exact.norm().item()
    assert foretold(report, "float32") == pytest.approx(measured, rel=0.35)  # by counts: 0.35 of it


def test_pairs_of_readers_are_merged():
    report = Step(by_sub=-1).report(LOW)
    both = hmp.CastReport.merged([report, report])
    assert foretold(both, "float32") == pytest.approx(foretold(report, "float32"), rel=1e-6)
    assert [2 * read[4] for read in report.to_dict()["reads"]] == [read[4] for read in both.to_dict()["reads"]]


def test_files_without_pairs_of_readers_are_read():
    data = Step(by_sub=-1).report(LOW).to_dict()
    assert data.pop("reads")
    assert not report_of(data).reads


@pytest.mark.parametrize("kept", range(8))
def test_damaged_files_with_one_pair_of_readers_have_an_answer(kept):
    """Such as the product of two readers, and of neither with itself."""
    data = Step(by_sub=-1, by_mul=2).report(LOW).to_dict()
    reads = data["reads"]
    for dropped in range(8):
        data["reads"] = [each for number, each in enumerate(reads) if number == kept or number > dropped]
        assert foretold_of(report_of(data), "float32") >= 0
