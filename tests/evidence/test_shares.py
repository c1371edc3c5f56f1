"""``hmp.report(values=True)``: the share of each op in the error of the loss, against what is measured, and the edits that follow."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from measured_net import BF16, NORM_WIDE, TARGET, Net, X, loss_of, region
from torch import nn

from habana_mp import hmp


@pytest.mark.parametrize(
    ("op", "path"),
    [("linear", "first"), ("layer_norm", "norm"), ("gelu", ""), ("linear", "last"), ("cross_entropy_loss", "")],
)
def test_the_change_of_the_loss_is_foretold(op, path) -> None:
    """Each place alone in bfloat16, and all else in float32, against the first order from one float32 step."""

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def forward(self) -> torch.Tensor:
            return F.cross_entropy(self.net(X), TARGET)

    torch.manual_seed(0)
    model = WithLoss()
    with hmp.report(values=True) as report:
        model().backward()
    where = "net.(" if op == "cross_entropy_loss" else f"net.{path}" if path else "net"
    wide = hmp.Policy.from_ops(lower=[], rest="fp32", name="wide")
    place = "" if op == "cross_entropy_loss" else where
    others = {name: wide for name, _ in model.named_modules() if name.rpartition(".")[0] == place and name}
    hmp.set_policies(model, {"": wide, **others, place: hmp.Policy.from_ops(lower=[op], rest="fp32", name="low")})
    with torch.no_grad(), hmp.autocast("cpu", policy=wide):
        measured = model().item()
    hmp.set_policies(model, {})
    with torch.no_grad():
        measured -= model().item()
    module = None if op == "cross_entropy_loss" else where
    row = [
        row
        for row in report.to_dict()["rows"]
        if row["op"] == op and (module is None or row["module"].endswith(f": {where}"))
    ]
    assert sum(loss["change_low"] for each in row for loss in each["values"]["losses"]) == pytest.approx(
        measured, rel=0.15, abs=2e-6
    )


@pytest.mark.parametrize("front_end", ["convert", "autocast"])
def test_shares_of_what_ran(front_end, net) -> None:
    with region(front_end, NORM_WIDE), hmp.report(values=True) as report:
        loss_of(net).backward()
    assert report.error_share() == 1
    assert report.error_share("layer_norm") == 0  # it ran in float32
    assert report.error_share("layer_norm", what_if=True) > 0
    shares = [report.error_share("linear", path) for path in ("first", "last")]
    assert sum(shares) == pytest.approx(report.error_share("linear"))
    assert report.loss_change("linear") == pytest.approx(
        report.loss_change("linear", "first") + report.loss_change("linear", "last")
    )


def test_without_a_backward_pass_there_are_no_shares(net) -> None:
    with region("autocast"), hmp.report(values=True) as report:
        net(X)
    for ask in (report.error_share, report.loss_change):  # zero would pass for exact in a test of the error
        with pytest.raises(RuntimeError, match=r"^no backward pass was seen, .*: call backward in the block"):
            ask("linear")


def test_of_a_loss_that_is_not_finite_there_are_no_shares(net) -> None:
    with region("autocast"), hmp.report(values=True) as report:
        (loss_of(net) * float("nan")).backward()
    asked = {
        "share": lambda: report.error_share("linear"),
        "change": lambda: report.loss_change("linear"),
        "errors": report.errors,
        "presets": report.presets,
        "forecast": lambda: report.forecast("hmp"),
    }
    for ask in asked.values():
        with pytest.raises(RuntimeError, match=r"^the loss or its gradients are not finite or are zero"):
            ask()
    assert "error of the loss" not in str(report)


def test_what_runs_in_float32_has_no_share() -> None:
    with (
        region("autocast", hmp.Policy.from_ops(lower=[], rest="fp32", name="wide")),
        hmp.report(values="errors") as report,
    ):
        nn.Linear(8, 8)(torch.randn(4, 8))
    assert (report.error_share("linear"), report.loss_change("linear")) == (0, 0)


def test_edits_name_the_op_that_loses_the_accuracy(net) -> None:
    """exp of large numbers in bfloat16 against linear layers with small ones."""

    def step() -> None:
        (net(X).exp() * 1e3).sum().log().backward()

    policy = hmp.Policy.load("torch-cpu").with_edits("+exp:lower")
    with region("autocast", policy), hmp.report(values=True) as report:
        step()
    edits = report.edits()
    # From mul on all follow their inputs; the time of one call decides which of these comes first.
    assert {"+exp:fp32", "+mul:fp32", "+sum:fp32", "+log:fp32"} & {edit.text for edit in edits}
    wide = [edit for edit in edits if edit.text.endswith(":fp32")]
    assert wide[-1].error_after < 0.1 * wide[0].error
    better = policy.with_edits(*(edit.text for edit in edits if edit.text.endswith(":fp32")))
    with region("autocast", better), hmp.report(values=True) as again:
        step()
    assert abs(again.loss_change()) < abs(report.loss_change()) or again.loss_change() == 0
    assert any(edits[0].text in line.text for line in report.advice)


def test_two_calls_of_one_module_round_what_lies_between_them_once() -> None:
    """x + y + z in one module: what the first sum has rounded is not rounded again by the second."""
    x, y, z = (torch.randn(1000) for _ in range(3))
    with hmp.report(values=True) as report:
        (x + y) + z
    first = (x.to(BF16) + y.to(BF16)).float() - (x + y)
    second = ((x + y) + z.to(BF16).float()).to(BF16).float() - ((x + y) + z)
    found = [row["values"]["low"]["squares"] for row in report.to_dict()["rows"] if row["op"] == "add"]
    assert found == pytest.approx([first.square().sum().item(), second.square().sum().item()], rel=1e-4)


class Rotary(nn.Module):
    """Angles of positions, as transformers makes them: without gradients, and of large numbers."""

    def __init__(self, *, copied: bool) -> None:
        super().__init__()
        self.copied = copied
        self.register_buffer("inv_freq", 1.0 / 10000 ** (torch.arange(0, 16, 2) / 16))

    @torch.no_grad()
    def forward(self, positions: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = (positions[:, None].float() * self.inv_freq).repeat(1, 1)
        angles = torch.cat((angles, angles), -1)
        cos, sin = angles.cos() * 1.0, angles.sin() * 1.0
        return (cos.to(x.dtype).clone(), sin.to(x.dtype)) if self.copied else (cos, sin)


class Positions(nn.Module):
    def __init__(self, *, copied: bool) -> None:
        super().__init__()
        self.rotary = Rotary(copied=copied)
        self.q, self.k = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cos, sin = self.rotary(torch.arange(1000, 1000 + x.shape[0]), x)
        q, k = (torch.addcmul(y * cos, y.roll(8, -1), sin) for y in (self.q(x) * 4, self.k(x) * 4))
        return torch.softmax(q @ k.t(), -1) @ x


@pytest.mark.parametrize("front_end", ["convert", "autocast"])
@pytest.mark.parametrize("copied", [False, True])
def test_an_error_that_no_gradient_comes_to_counts_for_the_op_that_made_it(front_end, copied) -> None:
    """Rotary positions in bfloat16: position * inv_freq is off by whole radians, though by no more than other ops are in relation."""
    torch.manual_seed(0)
    model, x = Positions(copied=copied), torch.randn(64, 16)
    with torch.no_grad():
        exact = model(x).square().sum().item()
    with region(front_end, "hmp"), hmp.report(values=True) as report:
        loss = model(x).float().square().sum()
        loss.backward()
    hmp.revert()
    assert report.local_error("mul", "rotary").largest > 1
    assert report.error_share("mul", "rotary") > 0.5
    assert report.edits()[0].text == "+mul:fp32"
    assert report.edits()[0].modules == "Positions: rotary"
    with region(front_end, hmp.Policy.load("hmp").with_edits("+mul:fp32")):
        better = model(x).float().square().sum().item()
    assert abs(better - exact) < abs(loss.item() - exact) / 4


def into_a_slice(x):
    padded = torch.zeros(x.shape[0], x.shape[1] + 2)
    padded[:, 1:-1] = x
    return padded


WRITTEN = {
    "nothing": lambda x: x,
    "relu_": lambda x: F.relu(x, inplace=True),
    "add_, div_": lambda x: x.add_(1).div_(3.0),
    "by itself": lambda x: x.mul_(x),
    "copy_": lambda x: torch.zeros(x.shape).copy_(x),
    "a slice": into_a_slice,
    "a slice of it": lambda x: (x[:, 3:].neg_(), x)[1],
    "masked_fill_": lambda x: x.masked_fill_(x < 0, 0.5),
    "circular padding": lambda x: F.pad(x[None], (2, 2), mode="circular")[0],
    "a mean": lambda x: F.mse_loss(x, torch.zeros_like(x))[None, None],
}


@pytest.mark.parametrize("write", WRITTEN)
def test_what_no_gradient_comes_to_is_followed_where_it_is_written_to(write) -> None:
    """As by nn.ReLU(inplace=True) in a frozen encoder, whose errors before it counted as none."""
    policy = hmp.Policy.from_ops(lower=["mul"], rest="fp32")

    def outputs(x, weight):
        with torch.no_grad():
            written = WRITTEN[write]((x * 1.5).float())
        return written + weight

    torch.manual_seed(0)
    data = [torch.rand(32, 16) - 0.3 for _ in range(8)]
    weight = torch.zeros(outputs(data[0], 0).shape, requires_grad=True)
    exact, others = [], []
    with hmp.autocast("cpu", policy=policy), hmp.report(values=True) as report:
        for x in data:
            others.append(outputs(x, weight))
            report.project(others[-1], k=32)
    with torch.no_grad():
        exact = [outputs(x, weight) for x in data]
    squares = sum((a - b).square().sum() for a, b in zip(exact, others, strict=True))
    measured = (squares / sum(b.square().sum() for b in exact)).sqrt().item()
    assert report.errors()["outputs"] == pytest.approx(measured, rel=0.35)
    assert report.edits()[0].text == "+mul:fp32"


RANDOM = {
    "randn_like": (torch.randn_like, lambda t: torch.empty_like(t).normal_()),
    "rand_like": (torch.rand_like, lambda t: torch.empty_like(t).uniform_()),
    "randint_like": (lambda t: torch.randint_like(t, 0, 5), lambda t: torch.empty_like(t).random_(0, 5)),
    "bernoulli": (lambda t: torch.bernoulli(t / 4), lambda t: torch.empty_like(t / 4).bernoulli_(t / 4)),
}


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("draws", RANDOM)
def test_random_numbers_like_those_with_an_error_have_none(draws) -> None:
    """Memory that was made for them has what was there before: here NaNs."""
    found = []
    for like in RANDOM[draws]:
        torch.manual_seed(0)
        layer = nn.Linear(8, 8)
        with hmp.autocast("cpu", policy="hmp"), hmp.report(values=True) as report:
            x = torch.rand(16, 8) * 2
            noise = like(x)
            nn.functional.mse_loss(layer(x + noise), noise).backward()
        found.append([*report.errors().values(), *report.presets().values()])
    assert found[0] == found[1]


def test_a_number_of_python_is_no_float64_tensor_d38() -> None:
    with hmp.autocast("cpu", policy="hmp"), hmp.report(values=True) as report:
        torch.ones(4).add(0.1) * 1.2345
    assert float(report.local_error("mul")) > 0


@pytest.mark.parametrize("front_end", ["convert", "autocast"])
@pytest.mark.parametrize(("p", "train"), [(0.1, False), (0.0, True), (0.1, True)], ids=["eval", "p=0", "drops"])
def test_dropout_is_measured_where_it_drops_nothing(p, train, front_end) -> None:
    """It hands on what it is given, and its list rounds that. Where it is given low numbers it does nothing."""
    policy, x = hmp.Policy.from_ops(lower=["dropout"], rest="fp32"), torch.rand(64, 16, requires_grad=True)
    layer = torch.nn.Dropout(p).train(train)
    if front_end == "convert":
        hmp.convert(policy=policy)
    with hmp.report(values=True) as report:
        with hmp.autocast("cpu", policy=policy) if front_end == "autocast" else contextlib.nullcontext():
            once = layer(x)
            twice = layer(once)
        report.project(twice.float(), k=4)
    assert once.dtype == twice.dtype == torch.bfloat16
    if p and train:
        assert float(report.local_error("dropout")) > 0  # of the product with its mask
    else:
        assert float(report.local_error("dropout")) == pytest.approx(
            ((x.bfloat16().float() - x).norm() / x.norm()).item()
        )
        assert report.error_share("dropout") == 1
        (row,) = (row for row in report.rows if row.op == "dropout")
        assert row.calls == 2
