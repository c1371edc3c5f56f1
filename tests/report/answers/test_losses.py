"""Errors of each loss apart: a loss is the line that called backward."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from habana_mp import hmp
from habana_mp._report.edits.edits import edits
from habana_mp._report.form import report_of
from habana_mp._report.numbers import change_of, share
from tests.shared.fake_reports import loss, summed, values, with_losses
from tests.shared.fake_reports import row as row_of

POLICY = hmp.Policy.from_ops(lower=["mm"])


def random(*size: int) -> torch.Tensor:
    return torch.rand(*size, generator=torch.Generator().manual_seed(0))


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    with hmp.autocast("cpu", policy=POLICY):
        return torch.mm(x, weight)


def off(x: torch.Tensor, weight: torch.Tensor, scale: float) -> float:
    """By how much bfloat16 changes a loss that is the scaled sum of a product."""
    with torch.no_grad():
        low = torch.mm(x.bfloat16(), weight.bfloat16()).float()
        return scale * (low - torch.mm(x, weight)).sum().item()


@pytest.fixture(scope="module")
def critic() -> hmp.CastReport:
    """A generator and its critic: two losses, of which one is a thousandth of the other, in two steps."""
    x, a, b = random(8, 8), random(8, 8).requires_grad_(), random(8, 8).mul(0.7).requires_grad_()
    with hmp.report(values=True) as report:
        for _ in range(2):
            product(x, a).float().sum().backward()  # the generator
            (product(x, b).float().sum() * -1e-3).backward()  # the critic
    return report


def lines(report: hmp.CastReport) -> list[str]:
    source = Path(__file__).read_text("utf-8").splitlines()
    places = [line.rpartition(":") for line in report.errors()]
    assert all(path.endswith("test_losses.py") for path, _, _ in places)
    return [source[int(number) - 1].rpartition("# ")[2] for _, _, number in places]


def test_each_line_that_calls_backward_is_a_loss(critic):
    assert lines(critic) == ["the generator", "the critic"]
    assert [each["passes"] for each in critic.to_dict()["losses"]] == [2, 2]


def test_each_loss_has_an_error(critic):
    x, b = random(8, 8), random(8, 8).mul(0.7)
    assert [*critic.errors().values()] == pytest.approx([abs(off(x, random(8, 8), 1)), abs(off(x, b, -1e-3))], rel=0.02)


def test_the_change_of_a_loss_has_a_sign(critic):
    generator, other = critic.errors()
    x = random(8, 8)
    assert critic.loss_change(loss=generator) == pytest.approx(2 * off(x, random(8, 8), 1), rel=0.02)
    short = other.rpartition("/")[2]
    assert critic.loss_change("mm", loss=short) == pytest.approx(2 * off(x, random(8, 8).mul(0.7), -1e-3), rel=0.02)


@pytest.mark.parametrize("asked", ["", "test_losses.py", "other.py:1", "1", 59])
def test_which_loss_must_be_clear(critic, asked):
    with pytest.raises(ValueError, match=r"loss must be one of '.*test_losses.py:\d+', '.*test_losses.py:\d+', not "):
        critic.loss_change(loss=asked)


def test_a_block_of_two_losses_has_no_change_of_the_loss(critic):
    with pytest.raises(
        ValueError, match=r"the block has 2 losses: call it with loss='.*test_losses.py:\d+', or another of "
    ):
        critic.loss_change()


@pytest.mark.parametrize("what_if", ["int8", "bfloat16", 2])
def test_a_loss_in_8_bits_is_not_known(critic, what_if):
    """It was the change in the low dtype."""
    with pytest.raises(ValueError, match=f"what_if must be True or False, not {what_if!r}"):
        critic.loss_change(loss=next(iter(critic.errors())), what_if=what_if)


def test_an_edit_names_the_losses(critic):
    (edit,) = (each for each in critic.edits() if each.text == "+mm:fp32")
    assert [each.error for each in edit.losses] == [*critic.errors().values()]
    assert [each.error_after for each in edit.losses] == [0, 0]
    assert edit.why.count("test_losses.py:") == 2
    assert "of the error of the losses" in edit.why


def test_presets_of_one_loss(critic):
    generator, other = critic.errors()
    assert critic.presets(generator)["hmp"] == pytest.approx(critic.errors()[generator], rel=1e-6)
    assert critic.presets(other)["hmp"] == pytest.approx(critic.errors()[other], rel=1e-6)
    assert [*critic.presets()] == [*critic.presets(other)]


def test_the_head_of_the_table_has_a_line_for_each_loss(critic):
    head = [line for line in str(critic).splitlines() if line.startswith("error of the loss of test_losses.py:")]
    assert len(head) == 2
    assert all(" ± 50 %; foretold:" in line for line in head)  # of two passes


def test_the_head_has_a_preset_in_float16():
    net = torch.nn.Linear(16, 4)
    policy = hmp.Policy.load("balanced").with_low_dtype("fp16")
    with hmp.autocast("cpu", torch.float16, policy=policy), hmp.report(values=True) as report:
        net(torch.randn(8, 16)).float().square().mean().backward()
    assert f"; foretold: torch-cuda {report.presets()['torch-cuda']:.2g}\n" in str(report)


def test_losses_count_alike_whatever_their_sizes_are():
    rows = [
        row_of("linear", values=values(losses=[loss(81.0, line="gan.py:1")])),
        row_of("matmul", values=values(losses=[loss(9.0, line="gan.py:1"), loss(1e-6, line="gan.py:2")])),
    ]
    made = summed(rows, low_dtype="bfloat16", projected_squares=0.0, edges=[])
    report = report_of(with_losses(made))
    assert share(report.rows, report.rows[1:]) > 0.5
    assert [change_of(report.rows)(row) for row in report.rows] == pytest.approx([math.sqrt(0.9), math.sqrt(1.1)])
    first = edits(report)[0]
    assert first.text == "+matmul:fp32"
    assert first.error == pytest.approx(math.hypot(math.sqrt(90), 1e-3) / math.sqrt(2))
    assert [each.error for each in first.losses] == pytest.approx([math.sqrt(90), 1e-3])


def test_a_report_of_losses_is_loaded_and_merged(critic, tmp_path):
    critic.to_json(tmp_path / "r.json")
    loaded = hmp.CastReport.load(tmp_path / "r.json")
    assert loaded.errors() == critic.errors()
    both = hmp.CastReport.merged([loaded, critic])
    assert both.errors() == pytest.approx(critic.errors())
    assert [each["passes"] for each in both.to_dict()["losses"]] == [4, 4]


def test_a_loss_of_rows_that_the_report_lacks_is_refused():
    made = summed([row_of("linear", values=values(losses=[loss(1.0)]))], low_dtype="bfloat16")
    with pytest.raises(ValueError, match=r"losses must have 'train.py:41', which rows have"):
        report_of({**made, "projected_squares": 0.0, "edges": [], "losses": []})


def test_a_checkpoint_runs_its_backward_pass_inside_of_that_of_the_loss():
    """A reentrant one begins a pass of its own for each part: they counted as passes of the loss, whose error came out too small."""
    x = random(8, 8).requires_grad_()
    weights = [random(8, 8).requires_grad_() for _ in range(3)]

    def through(again: bool) -> hmp.CastReport:
        with hmp.report(values=True) as report:
            y = x
            for weight in weights:
                y = checkpoint(product, y, weight, use_reentrant=True) if again else product(y, weight)
            y.float().sum().backward()
        return report

    plain, parts = through(again=False), through(again=True)
    assert [each["passes"] for each in parts.to_dict()["losses"]] == [1]
    assert [*parts.errors().values()] == pytest.approx([*plain.errors().values()], rel=0.05)


def test_outputs_take_the_place_of_a_loss():
    with hmp.report(values=True) as report:
        y = product(random(8, 8), random(8, 8).requires_grad_())
        report.project(y)
    assert [*report.errors()] == ["outputs"]
    assert report.presets()["hmp"] == pytest.approx(report.errors()["outputs"])


def learned(*, frozen: bool) -> float:
    """The error of a loss whose target another network makes in no_grad."""
    torch.manual_seed(0)
    teacher, weight = torch.nn.Linear(8, 8).requires_grad_(not frozen), torch.rand(8).requires_grad_()
    with hmp.report(values=True) as report, hmp.autocast("cpu", policy=hmp.Policy.from_ops(lower=["linear"])):
        with torch.no_grad():
            target = teacher(random(8, 8))
        (weight * target).square().mean().backward()
    (error,) = report.errors().values()
    return error


def test_what_a_network_that_learns_makes_in_no_grad_counts():
    """A target, a pseudo label: the weights require gradients, and the result does not. Its error was 0."""
    assert learned(frozen=False) == pytest.approx(learned(frozen=True), rel=1e-6) != 0


def test_a_preset_that_follows_the_first_input_is_foretold():
    """mse_loss is float32 by balanced; hmp has it in no list, and its first input is low."""
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(32, 1), random(64, 32)

    def run(policy: str) -> hmp.CastReport:
        with hmp.report(values=True) as report:
            with hmp.autocast("cpu", policy=policy):
                loss = torch.nn.functional.mse_loss(layer(x).squeeze(-1) * 5 + 3, torch.zeros(64))
            loss.backward()
        return report

    foretold, own = run("balanced").presets(), run("hmp")
    (error,) = own.errors().values()
    assert foretold["hmp"] == pytest.approx(error, rel=0.2)
    assert foretold["hmp"] > foretold["balanced"]
    assert own.presets()["balanced"] == pytest.approx(foretold["balanced"], rel=0.2)


@pytest.fixture(scope="module")
def both() -> hmp.CastReport:
    """A loss and the outputs that it is made of."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
    with hmp.autocast("cpu", policy="hmp"), hmp.report(values=True) as report:
        for number in range(4):
            outputs = net(torch.randn(64, 16, generator=torch.Generator().manual_seed(number)))
            report.project(outputs, k=8)
            F.cross_entropy(outputs.float(), torch.arange(64) % 4).backward()
    return report


def test_a_loss_and_outputs_in_one_block_have_an_error_each(both):
    """Outputs were left out in silence where a loss was seen."""
    (loss_line, loss_error), (name, outputs_error) = both.errors().items()
    assert loss_line.partition(":")[0].endswith("test_losses.py")
    assert name == "outputs"
    assert both.presets("outputs")["hmp"] == pytest.approx(outputs_error, rel=0.01)
    assert both.forecast("hmp", loss_line) == both.presets("test_losses.py:" + loss_line.rpartition(":")[2])["hmp"]
    head = [line for line in str(both).splitlines() if line.startswith("error of ")]
    assert head[0].startswith(f"error of the loss {loss_error:.2g}")
    assert head[1].startswith(f"error of the outputs {outputs_error:.2g}")


def test_an_edit_names_the_loss_and_the_outputs(both):
    edit = both.edits()[0]
    assert [each.loss for each in edit.losses] == [*both.errors()]
    assert "of the error of the loss and the outputs (estimated: the loss " in edit.why
    assert ", the outputs " in edit.why
    assert both.loss_change() == both.loss_change(loss=next(iter(both.errors())))
    with pytest.raises(ValueError, match="loss must be one of"):
        both.loss_change(loss="outputs")
