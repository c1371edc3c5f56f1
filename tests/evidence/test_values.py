"""``hmp.report(values=True)``: errors and ranges, on places where they are known; and that nothing else changes."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import threading

import pytest
import torch
import torch.nn.functional as F
from measured_net import BF16, NORM_WIDE, X, loss_of, region, relative
from torch import nn

from habana_mp import hmp

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
    if front_end == "neither":
        with pytest.raises(RuntimeError, match="no policy was in force"):
            report.local_error("gelu")
    else:
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
    with pytest.raises(RuntimeError, match='values="errors" leaves it out'):
        report.local_error("layer_norm", what_if=True)


def test_numbers_that_are_lost() -> None:
    x = torch.full((4, 4), 300.0)
    with (
        hmp.autocast("cpu", torch.float16, policy=hmp.Policy.from_ops(lower=["mm"])),
        hmp.report(values=True) as report,
    ):
        torch.mm(x, x)
    assert report.local_error("mm").lost == 16


class Overflows(nn.Module):
    """A sum that is infinite in float16, of which nothing arrives at the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.pre, self.head = nn.Identity(), nn.Linear(4, 4)
        self.pre.forward = lambda x: x / (x * 300).sum(-1, keepdim=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.pre(x))


def overflowed(*, grad: bool = True) -> hmp.CastReport:
    policy = hmp.Policy.from_ops(lower=["sum", "linear"], fp32=["div"])
    with (
        hmp.autocast("cpu", torch.float16, policy=policy),
        hmp.report(values=True) as report,
        torch.set_grad_enabled(grad),
    ):
        loss = Overflows()(torch.full((16, 4), 100.0)).float().square().mean()
        if grad:
            loss.backward()
    return report


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize(("per", "text"), [("op", "+sum:fp32"), ("module", "+sum in pre:fp32")])
def test_an_op_that_loses_numbers_is_the_first_to_edit(grad, per, text) -> None:
    report = overflowed(grad=grad)
    edit = report.edits(per)[0]
    assert (edit.text, edit.lost, edit.error) == (text, 16, None)
    assert edit.why.startswith("loses 16 of 16 numbers in float16, in Overflows: pre; ")
    assert report.advice[0].text.startswith("+sum:fp32: sum loses 16 of 16 numbers in float16, in Overflows: pre; ")
    assert report.edits(per)[1:] == () or "sum" not in report.edits(per)[1].text


def test_a_module_in_which_no_op_ran_is_refused() -> None:
    report = overflowed()
    assert report.local_error("linear", "head") == report.local_error("linear", "Overflows: head")
    for ask in (report.local_error, report.error_share, report.loss_change):
        with pytest.raises(
            ValueError, match=r"^no op ran in a module 'Overflows: haed'\. Did you mean 'Overflows: head'\?$"
        ):
            ask("linear", "Overflows: haed")
    with pytest.raises(ValueError, match=r"^no op ran in a module 'xyz'$"):
        report.local_error("linear", "xyz")


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
    with pytest.raises(RuntimeError, match="was measured in the low dtype"):  # a zero would read as no error
        report.local_error("mm", what_if=True)


@pytest.mark.parametrize("also_here", [True, False])
def test_other_threads_are_counted_and_not_measured(net, also_here) -> None:
    """D50. The thread that opened the report is measured, with its backward pass."""

    def run() -> None:
        with hmp.autocast("cpu", policy="torch-cpu"):
            loss_of(copy.deepcopy(net)).backward()

    with hmp.report(values=True) as alone:
        run()
    with hmp.report(values=True) as report:
        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        if also_here:
            run()
        for thread in threads:
            thread.join()
    assert report.casts() == (3 + also_here) * alone.casts()
    assert "another thread than the report's called it" in str(report)
    assert sum("open the report on the thread that runs the step" in each.text for each in report.advice) == 1
    if also_here:
        assert float(report.local_error("linear")) == pytest.approx(float(alone.local_error("linear")), rel=1e-6)
        assert report.loss_change("linear") == pytest.approx(alone.loss_change("linear"), rel=1e-3)
    else:
        with pytest.raises(RuntimeError, match="another thread than the report's called it"):
            report.local_error("linear")


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
    row["values"]["losses"][0]["change"] = "much"
    (tmp_path / "wrong.json").write_text(json.dumps(values))
    with pytest.raises(
        ValueError, match=r"Expected `float`, got `str` at `\$\.rows\[0\]\.values\.losses\[0\]\.change`"
    ):
        hmp.CastReport.load(tmp_path / "wrong.json")


@pytest.mark.parametrize("values", ["yes", 3, None])
def test_wrong_values(values) -> None:
    with pytest.raises(ValueError, match="values must be True, False or"):
        hmp.report(values=values)


def test_a_step_whose_gradients_overflow_is_still_json(net) -> None:
    with hmp.report(values=True) as report:
        (loss_of(net) * math.inf).backward()
    json.dumps(report.to_dict(), allow_nan=False)
