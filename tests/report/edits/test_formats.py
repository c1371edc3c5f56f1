"""``report(values=True, formats=...)``: what each op would be in 8 bits, beside what it is, and what edits into these lists are foretold to do."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp
from habana_mp._evidence.compare import under
from habana_mp._report.form import read_report

BOTH = ("weight_int8", "int8")
WIDE = hmp.Policy.from_ops(fp32=["linear", "matmul", "conv2d", "embedding"], rest="fp32", name="wide")
FIRST = {"linear": "weight_int8", "conv2d": "int8", "embedding": "weight_int8"}


class Net(nn.Module):
    """Each kind of op that a list may have in 8 bits, and ops that none may."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 64)
        self.conv, self.mlp = nn.Conv2d(1, 8, 3), nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
        self.product = nn.Parameter(torch.randn(64, 32) / 8)
        self.head = nn.Linear(32, 10)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.mlp(self.words(words)) @ self.product
        drawn = self.conv(x[:, None, :, :])
        return self.head(torch.tanh(x)).mean(1) + drawn.mean((1, 2, 3), keepdim=True).squeeze(-1).squeeze(-1)


def made() -> tuple[Net, torch.Tensor]:
    torch.manual_seed(0)
    return Net().eval(), torch.randint(0, 50, (32, 16))


def measured(policy: hmp.Policy | str, formats: tuple[str, ...] = BOTH, *, loss: bool = False) -> hmp.CastReport:
    net, words = made()
    with hmp.autocast("cpu", policy=policy), hmp.report(values=True, formats=formats) as report:
        out = net(words)
        if loss:
            out.float().square().mean().backward()
        else:
            report.project(out, k=64)
    return report


def with_fast_formats(report: hmp.CastReport, folder: Path) -> hmp.CastReport:
    """The same report, with calls in 8 bits that take half the time of others on every machine: so each is worth an edit."""
    data = report.to_dict()
    for values in (row["values"] for row in data["rows"] if row.get("values")):
        for each in values.get("formats", []):
            each["seconds"] = (each["lower_seconds"] or values["ran_seconds"]) / 2
    (folder / "fast.json").write_text(json.dumps(data))
    return hmp.CastReport.load(folder / "fast.json")


@pytest.fixture(scope="module")
def wide() -> hmp.CastReport:
    return measured(WIDE)


@pytest.fixture(scope="module")
def low() -> hmp.CastReport:
    return measured("balanced")


CALLS = [
    ("linear", "mlp.0", BOTH),
    ("conv2d", "conv", BOTH),
    ("matmul", "", BOTH),
    ("embedding", "words", ("weight_int8",)),
    ("gelu", "mlp.1", ()),
]


@pytest.mark.parametrize("base", ["wide", "low"])
@pytest.mark.parametrize(("op", "module", "formats"), CALLS, ids=lambda each: each if isinstance(each, str) else "")
def test_an_op_is_measured_in_the_formats_that_it_can_run_in(base, op, module, formats, request) -> None:
    """The error is that of the op run in 8 bits on the inputs that it had."""
    report = request.getfixturevalue(base)
    (row,) = (row for row in report.rows if row.op == op and row.module == ("Net: " + module).removesuffix(": "))
    assert tuple(row.formats) == formats
    for name in formats:
        assert 0 < float(row.formats[name]) < 0.05
        assert float(report.local_error(op, module or None, what_if=name)) > 0


def test_the_error_is_that_of_the_op_alone() -> None:
    torch.manual_seed(0)
    net, x = nn.Linear(64, 32), torch.randn(8, 64)
    with hmp.autocast("cpu", policy=WIDE), hmp.report(values=True, formats=BOTH) as report:
        report.project(net(x))
    with torch.no_grad():
        exact = net(x)
        for name in BOTH:
            with hmp.autocast("cpu", policy=hmp.Policy.from_ops(**{name: ["linear"]})):
                error = (net(x).float() - exact).norm() / exact.norm()
            assert float(report.local_error("linear", what_if=name)) == pytest.approx(error.item(), rel=1e-5)


EDITS = [f"+linear in {path}:{name}" for path in ("mlp.0", "mlp.2", "head") for name in BOTH]
EDITS += ["+matmul:int8", "+conv2d:weight_int8", "+embedding:weight_int8", "+linear:int8"]


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("base", ["wide", "low"])
def test_what_is_foretold_is_measured(base, edit, request) -> None:
    report, (net, words) = request.getfixturevalue(base), made()
    policy = (WIDE if base == "wide" else hmp.Policy.load("balanced")).with_edits(edit)
    with torch.no_grad():
        exact = net(words)
        with under(policy):
            found = net(words).float()
    assert report.forecast(policy) == pytest.approx(((found - exact).norm() / exact.norm()).item(), rel=0.3)


@pytest.mark.parametrize("per", ["op", "module"])
def test_edits_into_8_bits_are_a_sequence_of_their_own(per, low) -> None:
    found = low.edits(per, formats=BOTH)
    assert all(edit.text.endswith(BOTH) and edit.seconds <= 0 for edit in found)
    assert len({edit.text.rpartition(":")[0] for edit in found}) == len(found)
    for i, edit in enumerate(found):
        policy = hmp.Policy.load("balanced").with_edits(*(each.text for each in found[: i + 1]))
        assert edit.error_after == pytest.approx(low.forecast(policy))
    assert [edit.text for edit in low.edits(per)] == [edit.text for edit in measured("balanced", ()).edits(per)]


def test_a_change_within_what_the_estimate_is_off_by_has_no_sign(tmp_path) -> None:
    net, words = made()
    with hmp.autocast("cpu", policy="balanced"), hmp.report(values=True, formats=BOTH) as report:
        report.project(net(words))
    report = with_fast_formats(report, tmp_path)
    before, found = report.errors()["outputs"], {}
    for edit in report.edits("module", formats=BOTH):
        assert edit.error_after is not None
        found[edit.text] = abs(edit.error_after - before) <= 0.25 * before
        assert ("about as it is" in edit.why or "would leave" in edit.why) == found[edit.text], edit.why
        assert ("would raise" in edit.why) == (not found[edit.text]), edit.why
        before = edit.error_after
    assert {*found.values()} == {True, False}
    assert f"error of the outputs {report.errors()['outputs']:.2g} ± 25 %" in str(report)


def test_changes_of_a_loss() -> None:
    report = measured(WIDE, loss=True)
    (loss,) = report.errors()
    assert report.errors()[loss] == 0
    eight = WIDE.with_edits("+linear:int8")
    assert report.forecast(eight) == report.forecast(eight, loss) > 0
    assert report.error_share("matmul", what_if="int8") > 2 * report.error_share("matmul", what_if=True)
    assert report.error_share(what_if="int8") == pytest.approx(1)


def test_nothing_is_changed_by_it() -> None:
    net, words = made()
    with torch.no_grad(), hmp.autocast("cpu", policy="balanced"):
        before = net(words)
    cached, weights = hmp.cache.info(), copy.deepcopy(net.state_dict())
    with torch.no_grad(), hmp.autocast("cpu", policy="balanced"), hmp.report(values=True, formats=BOTH):
        assert torch.equal(net(words), before)
    assert hmp.cache.info().bytes == cached.bytes
    assert all(torch.equal(weight, weights[name]) for name, weight in net.state_dict().items())


def test_files_and_merged_reports_have_it(low) -> None:
    text = low.to_json()
    assert read_report(text).to_dict() == low.to_dict()
    merged = hmp.CastReport.merged([low, low])
    for row, twice in zip(low._data().rows, merged._data().rows, strict=True):
        assert [2 * each.calls for each in row.measured.formats] == [each.calls for each in twice.measured.formats]
    for op, name in FIRST.items():
        assert float(merged.local_error(op, what_if=name)) == pytest.approx(float(low.local_error(op, what_if=name)))
    policy = hmp.Policy.load("balanced").with_edits("+linear:int8")
    assert merged.forecast(policy) == pytest.approx(low.forecast(policy), rel=0.2)  # passes have other signs


def test_a_row_and_the_table_show_it(low, monkeypatch) -> None:
    assert "in weight_int8 0.0" in repr(next(row for row in low.rows if row.op == "conv2d"))
    monkeypatch.setenv("COLUMNS", "160")
    (head,) = (line for line in str(low).splitlines() if "of all error" in line and "cast time" in line)
    assert {*BOTH} <= {*head.split()}


def test_ops_in_8_bits_are_measured_and_nothing_is_foretold_of_them() -> None:
    policy = hmp.Policy.load("balanced")
    eight = policy.with_edits("+linear:int8")
    net, words = made()
    with hmp.autocast("cpu", policy=eight), hmp.report(values=True, formats=BOTH) as frozen:
        frozen.project(net.requires_grad_(False)(words) + torch.zeros(10, requires_grad=True))
    for ask in (lambda: frozen.forecast(policy), frozen.presets, lambda: frozen.presets("outputs")):
        with pytest.raises(RuntimeError, match="linear ran in 8 bits"):
            ask()
    report = measured(eight)
    assert report.forecast(policy) > 0  # the weights required grad: they ran as lower


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: hmp.report(values=True, formats=("int4",)), ValueError, "'int4'; accepted are 'weight_int8', 'int8'"),
        (lambda: hmp.report(values=True, formats=("int_8",)), ValueError, "Did you mean 'int8'"),
        (lambda: hmp.report(values=True, formats="int8"), TypeError, "formats must be names"),
        (lambda: hmp.report(values=True, formats=(8,)), ValueError, "formats has 8"),
        (lambda: hmp.report(formats=("int8",)), ValueError, "needs values=True, not False"),
        (lambda: hmp.report(values="errors", formats=("int8",)), ValueError, "needs values=True, not 'errors'"),
        (lambda: hmp.tune(lambda: F.relu(torch.ones(2)), 0.1, formats=("int8",)), ValueError, "'float32' and 'lower'"),
        (
            lambda: hmp.tune(lambda: None, 0.1, formats=("float32", "lower", "int8"), cost="numbers"),
            ValueError,
            "need cost='seconds'",
        ),
        (
            lambda: hmp.tune(lambda: None, 0.1, formats=("float32", "lower", "int8"), others="lower"),
            ValueError,
            "need others='start'",
        ),
    ],
    ids=["unknown", "misspelt", "one name", "a number", "no values", "errors alone", "tune alone", "cost", "others"],
)
def test_formats_that_are_not_accepted(call, kind, text) -> None:
    with pytest.raises(kind, match=text):
        call()


def test_questions_that_need_another_report(low) -> None:
    report = measured("balanced", ())
    eight = hmp.Policy.load("balanced").with_edits("+linear:int8")
    for ask in (
        lambda: report.forecast(eight),
        lambda: report.edits(formats=("int8",)),
        lambda: report.local_error("linear", what_if="int8"),
    ):
        with pytest.raises(RuntimeError, match=r"formats=\('int8',\)"):
            ask()
    with pytest.raises(RuntimeError, match="the error of gelu in int8 is not measured"):
        low.local_error("gelu", what_if="int8")
    with pytest.raises(ValueError, match="what_if must be"):
        low.local_error("linear", what_if="int4")
    with pytest.raises(ValueError, match="bfloat16 was measured"):
        low.forecast(hmp.Policy.load("balanced").with_low_dtype("float16"))


def test_time_is_compared_with_inference(wide, low) -> None:
    """A report hears numbers, and weights of a training step are never kept: so the calls ran without packed copies (a MiniLM foretold to save
    18 % took 17 % longer).
    """
    rows = [row for row in low.to_dict()["rows"] if "values" in row]
    found = {(row["op"], row["module"], each["format"]): each for row in rows for each in row["values"]["formats"]}
    assert len(found) == 11
    embedding = next(each for (op, *_), each in found.items() if op == "embedding")  # follows its weight: in float32
    assert all((each["lower_seconds"] > 0) == (each is not embedding) for each in found.values())
    of_wide = [each for row in wide.to_dict()["rows"] if "values" in row for each in row["values"]["formats"]]
    assert len(of_wide) == 11
    assert not any(each["lower_seconds"] for each in of_wide)
    for edit in low.edits(formats=BOTH):
        name = edit.text.rpartition(":")[2]
        own = [each for row in rows if row["op"] == edit.op for each in row["values"]["formats"]]
        saved = sum(each["seconds"] - each["lower_seconds"] for each in own if each["format"] == name)
        assert edit.op == "embedding" or edit.seconds == pytest.approx(saved, abs=1e-6)
        assert any(text in str(edit) for text in ("of a step of inference", "costs no time", "saves less time"))
