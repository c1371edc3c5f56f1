"""``hmp.report(values=True)``: errors, ranges and shares of the error, on places where they are known; and that nothing else changes."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp

BF16 = torch.bfloat16
NORM_WIDE = hmp.Policy.load("torch-cpu").with_edits("+layer_norm:fp32")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.norm = nn.LayerNorm(32)
        self.last = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.gelu(self.norm(self.first(x))))


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


X = torch.randn(64, 16, generator=torch.Generator().manual_seed(1))
TARGET = torch.randint(0, 4, (64,), generator=torch.Generator().manual_seed(2))


def loss_of(model: nn.Module) -> torch.Tensor:
    return F.cross_entropy(model(X).float(), TARGET)


def region(front_end: str, policy: hmp.Policy | str = "torch-cpu"):
    if front_end == "convert":
        hmp.convert(policy=policy)
        return contextlib.nullcontext()
    return hmp.autocast("cpu", policy=policy)


def relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return ((got.double() - wanted.double()).norm() / wanted.double().norm()).item()


# --- errors


@pytest.mark.parametrize("front_end", ["convert", "autocast"])
@pytest.mark.parametrize("grad", [True, False])
def test_the_error_of_an_op_is_that_of_its_casts_and_of_its_arithmetic(front_end, grad, net) -> None:
    first = net.first
    with torch.no_grad():
        wanted = relative(F.linear(X.to(BF16), first.weight.to(BF16), first.bias.to(BF16)).float(), first(X))
    with torch.set_grad_enabled(grad), region(front_end), hmp.report(values=True) as report:
        net(X)
    error = report.local_error("linear", "first")
    assert float(error) == pytest.approx(wanted, rel=1e-3)
    assert 0 < error.largest < 0.05
    assert error.lost == 0
    assert report.local_error("linear", "first", what_if=True) == error


@pytest.mark.parametrize("front_end", ["convert", "autocast", "neither"])
def test_what_ran_in_float32_has_no_error_and_one_that_it_would_have(front_end, net) -> None:
    x = torch.randn(8, 32)
    with torch.no_grad():
        wanted = relative(F.gelu(x.to(BF16)).float(), F.gelu(x))
    where = contextlib.nullcontext() if front_end == "neither" else region(front_end)
    with where, hmp.report(values=True) as report:
        F.gelu(x)
    assert report.local_error("gelu") == report.local_error("gelu", backward=True)
    assert float(report.local_error("gelu")) == 0
    assert float(report.local_error("gelu", what_if=True)) == pytest.approx(wanted, rel=1e-3)


def test_d14_of_a_norm_the_lower_list_would_cast_the_input_alone(net) -> None:
    norm, x = nn.LayerNorm(32), torch.randn(8, 32)
    nn.init.normal_(norm.weight)
    with torch.no_grad():
        wanted = relative(F.layer_norm(x.to(BF16), (32,), norm.weight, norm.bias).float(), norm(x))
    with hmp.report(values=True) as report:
        norm(x)
    assert float(report.local_error("layer_norm", what_if=True)) == pytest.approx(wanted, rel=1e-3)


def test_an_op_without_a_low_kernel_is_foretold_by_rounding() -> None:
    x = torch.eye(3) * 1.2345
    with torch.no_grad():
        wanted = relative(torch.linalg.inv(x.to(BF16).float()).to(BF16).float(), torch.linalg.inv(x))
    with hmp.report(values=True) as report:
        torch.linalg.inv(x)
    assert float(report.local_error("linalg_inv", what_if=True)) == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize("front_end", ["convert", "autocast"])
def test_backward_ops_are_counted_with_their_forward(front_end, net) -> None:
    with region(front_end), hmp.report(values=True) as report:
        loss_of(net).backward()
    assert 1e-4 < float(report.local_error("linear", "first", backward=True)) < 1e-2
    assert float(report.local_error("cross_entropy", backward=True)) == 0


def test_errors_alone_take_no_second_run_in_the_low_dtype(net) -> None:
    with region("autocast", NORM_WIDE), hmp.report(values="errors") as report:
        loss_of(net).backward()
    assert float(report.local_error("linear")) > 0
    assert float(report.local_error("layer_norm", what_if=True)) == 0


def test_numbers_that_are_lost() -> None:
    x = torch.full((4, 4), 300.0)
    with (
        hmp.autocast("cpu", torch.float16, policy=hmp.Policy.from_ops(lower=["mm"])),
        hmp.report(values=True) as report,
    ):
        torch.mm(x, x)
    assert report.local_error("mm").lost == 16


RANGES = {
    "over float16": ([1.0, 65504.0, 65536.0, -1e30], {"over_float16": 2, "largest": 1e30}),
    "under float16": ([1.0, 2.0**-24, 2.0**-25, -1e-30, 0.0], {"under_float16": 2, "smallest": 1e-30}),
    "under e4m3": ([448.0, 2.0**-9, 2.0**-10, 0.0], {"under_e4m3": 1, "under_e5m2": 0}),
    "under e5m2": ([57344.0, 2.0**-16, 2.0**-17, 1e-9], {"under_e4m3": 3, "under_e5m2": 2}),
}


@pytest.mark.parametrize(("numbers", "expected"), RANGES.values(), ids=RANGES)
@pytest.mark.parametrize("times", [1, 50_000])  # more than one part of the loop
def test_ranges_of_results(numbers, expected, times) -> None:
    with hmp.report(values=True) as report:
        torch.neg(torch.tensor(numbers).repeat(times))
    found = next(row["values"]["range"] for row in report.to_dict()["rows"] if row["op"] == "neg")
    sizes = {"largest", "smallest"}
    wanted = {name: value if name in sizes else value * times for name, value in expected.items()}
    assert {name: pytest.approx(found[name], rel=1e-6) for name in wanted} == wanted
    assert found["numbers"] == len(numbers) * times


# --- shares


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
    assert sum(each["values"]["change_low"] for each in row) == pytest.approx(measured, rel=0.15, abs=2e-6)


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
    assert report.error_share("linear") == 0
    assert report.edits() == ()


def test_edits_name_the_op_that_loses_the_accuracy(net) -> None:
    """exp of large numbers in bfloat16 against linear layers with small ones."""

    def step() -> None:
        (net(X).exp() * 1e3).sum().log().backward()

    policy = hmp.Policy.load("torch-cpu").with_edits("+exp:lower")
    with region("autocast", policy), hmp.report(values=True) as report:
        step()
    edits = report.edits()
    assert {"+exp:fp32", "+log:fp32"} & {edit.text for edit in edits}
    assert sum(edit.share for edit in edits if edit.text.endswith(":fp32")) > 0.9
    better = policy.with_edits(*(edit.text for edit in edits if edit.text.endswith(":fp32")))
    with region("autocast", better), hmp.report(values=True) as again:
        step()
    assert abs(again.loss_change()) < abs(report.loss_change()) or again.loss_change() == 0
    assert any(edits[0].text in line.text for line in report.advice)


def test_two_calls_of_one_place_round_what_lies_between_them_once() -> None:
    """x + y + z in one module: what the first sum has rounded is not rounded again by the second."""
    x, y, z = (torch.randn(1000) for _ in range(3))
    with hmp.report(values=True) as report:
        (x + y) + z
    first = (x.to(BF16) + y.to(BF16)).float() - (x + y)
    second = ((x + y) + z.to(BF16).float()).to(BF16).float() - ((x + y) + z)
    row = next(row for row in report.to_dict()["rows"] if row["op"] == "add")
    wanted = (first.square().sum() + second.square().sum()).item()
    assert row["values"]["low"]["squares"] == pytest.approx(wanted, rel=1e-4)


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


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_attention_is_measured_where_it_draws_no_random_numbers(dropout) -> None:
    q = torch.randn(1, 2, 8, 16, requires_grad=True)
    with hmp.autocast("cpu", policy="torch-cpu"), hmp.report(values=True) as report:
        F.scaled_dot_product_attention(q, q, q, dropout_p=dropout).float().sum().backward()
    assert (float(report.local_error("scaled_dot_product_attention")) > 0) == (dropout == 0)


def test_a_number_of_python_is_no_float64_tensor_d38() -> None:
    with hmp.autocast("cpu", policy="hmp"), hmp.report(values=True) as report:
        torch.ones(4).add(0.1) * 1.2345
    assert float(report.local_error("mul")) > 0


# --- nothing else changes


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu_(self.norm(self.conv(x)))
        x = self.drop(x).mean((2, 3))
        x += 1
        return self.head(x)


@pytest.mark.parametrize("front_end", ["convert", "autocast", "neither"])
def test_state_gradients_and_random_numbers_are_those_without(front_end) -> None:
    torch.manual_seed(0)
    model = Stateful()
    x = torch.randn(4, 3, 8, 8)

    def trained(values: bool) -> tuple[list[torch.Tensor], torch.Tensor]:
        copied = copy.deepcopy(model)
        optimizer = torch.optim.SGD(copied.parameters(), 0.1, momentum=0.9)
        torch.manual_seed(3)
        for _ in range(2):
            optimizer.zero_grad()
            with contextlib.nullcontext() if front_end == "neither" else region(front_end):
                copied(x).float().square().mean().backward()
            with hmp.disable_casts():
                optimizer.step()
        state = [*copied.state_dict().values(), *(p.grad for p in copied.parameters())]
        return state, torch.rand(1)

    plain, number = trained(False)
    with hmp.report(values=True) as report:
        seen, same_number = trained(True)
    assert all(map(torch.equal, plain, seen))
    assert torch.equal(number, same_number)
    assert any("values" in row for row in report.to_dict()["rows"])


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_after_an_exception_nothing_is_measured(error, net) -> None:
    def step() -> None:
        with region("autocast"), hmp.report(values=True):
            net(X)
            raise error

    with pytest.raises(error):
        step()
    y = net(X)
    assert y.grad_fn is not None
    with hmp.report() as report:
        loss_of(net).backward()
    assert not any("values" in row for row in report.to_dict()["rows"])


def test_an_op_that_raises_is_not_measured() -> None:
    with hmp.report(values=True) as report, contextlib.suppress(RuntimeError):
        torch.mm(torch.ones(2, 3), torch.ones(2, 3))
    assert float(report.local_error("mm", what_if=True)) == 0


def test_threads_are_measured_alike(net) -> None:
    def run() -> None:
        with hmp.autocast("cpu", policy="torch-cpu"):
            loss_of(copy.deepcopy(net)).backward()

    with hmp.report(values=True) as alone:
        run()
    with hmp.report(values=True) as report:
        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert float(report.local_error("linear")) == pytest.approx(float(alone.local_error("linear")), rel=1e-6)
    assert report.loss_change("linear") == pytest.approx(3 * alone.loss_change("linear"), rel=1e-3)


def test_reports_side_by_side(net) -> None:
    plain, errors, full = hmp.report(), hmp.report(values="errors"), hmp.report(values=True)
    with plain, errors, full, region("autocast"):
        loss_of(net).backward()
    assert plain.casts() == errors.casts() == full.casts()
    assert errors.local_error("linear") == full.local_error("linear")
    with pytest.raises(RuntimeError, match=r"make the report with hmp.report\(values=True\)"):
        plain.local_error("linear")


def test_json_merged_and_html(net, tmp_path) -> None:
    with region("autocast"), hmp.report(values=True) as report:
        loss_of(net).backward()
    report.to_json(tmp_path / "values.json")
    loaded = hmp.CastReport.load(tmp_path / "values.json")
    assert loaded.local_error("linear") == report.local_error("linear")
    assert loaded.edits() == report.edits()
    both = hmp.CastReport.merged([loaded, report])
    assert both.loss_change("linear") == pytest.approx(2 * report.loss_change("linear"))
    assert float(both.local_error("linear")) == pytest.approx(float(report.local_error("linear")))
    assert report.to_html()


def test_a_file_with_numbers_that_are_none(net, tmp_path) -> None:
    with region("autocast"), hmp.report(values=True) as report:
        loss_of(net).backward()
    values = json.loads(report.to_json())
    row = next(row for row in values["rows"] if "values" in row)
    row["values"]["change"] = "much"
    (tmp_path / "wrong.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match=r"values\.change is to be a finite number, not 'much'"):
        hmp.CastReport.load(tmp_path / "wrong.json")


@pytest.mark.parametrize("values", ["yes", 3, None])
def test_wrong_values(values) -> None:
    with pytest.raises(ValueError, match="values is True, False or"):
        hmp.report(values=values)


def test_a_step_whose_gradients_overflow_is_still_json(net) -> None:
    with hmp.report(values=True) as report:
        (loss_of(net) * math.inf).backward()
    json.dumps(report.to_dict(), allow_nan=False)
