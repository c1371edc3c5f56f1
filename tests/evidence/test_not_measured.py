"""What a report answers where nothing was measured: never 0 and never nothing, but an error with the reason that the printed report has (D50)."""

from __future__ import annotations

import contextlib
import json
import math
import re
import tempfile
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from measured_net import NORM_WIDE, TARGET, Net, X, loss_of
from torch import nn

from habana_mp import hmp
from habana_mp.cli import main

WIDE = hmp.Policy.from_ops(lower=[], rest="fp32", name="wide")


def reported(step, policy=NORM_WIDE, values=True, grad=True):
    torch.manual_seed(0)
    with torch.set_grad_enabled(grad), hmp.report(values=values) as report:
        if policy is None:
            step(report)
        else:
            with hmp.autocast("cpu", policy=policy):
                step(report)
    return report


def trained(report):
    loss_of(Net()).backward()


def partly_compiled(report):
    net = Net()
    body = torch.compile(lambda x: F.linear(x, net.first.weight), backend="eager")
    F.cross_entropy(net.last(F.gelu(net.norm(body(X)))).float(), TARGET).backward()


def sampled(y):
    return y.sum() + torch.poisson(y.abs()).sum()


def raising_backward(report):
    net = Net()
    net.last.register_full_backward_hook(lambda *_: 1 / 0)
    with contextlib.suppress(ZeroDivisionError):
        loss_of(net).backward()


def on_a_thread(report):
    def step():
        with hmp.autocast("cpu", policy=NORM_WIDE):
            trained(report)

    thread = threading.Thread(target=step)
    thread.start()
    thread.join()


def float64(report):
    nn.Sequential(nn.Linear(16, 4), nn.LayerNorm(4)).double()(X.double()).square().sum().backward()


def beside_the_loss(report):
    Net()(X)
    float64(report)


KINDS = {
    "no values": lambda: reported(trained, values=False),
    "no op": lambda: reported(lambda report: None),
    "no policy": lambda: reported(trained, policy=None),
    "no backward": lambda: reported(lambda report: Net()(X)),
    "no grad": lambda: reported(lambda report: Net()(X), grad=False),
    "loss is NaN": lambda: reported(lambda report: (loss_of(Net()) * math.nan).backward()),
    "projected": lambda: reported(lambda report: report.project(Net()(X))),
    "errors": lambda: reported(trained, values="errors"),
    "all in float32": lambda: reported(trained, policy=WIDE),
    "not again": lambda: reported(
        lambda report: sampled(nn.Sequential(nn.Linear(16, 16))(X).float()).backward(),
        policy=NORM_WIDE.with_edits("+poisson:lower"),
    ),
    "partly compiled": lambda: reported(partly_compiled),
    "backward raised": lambda: reported(raising_backward),
    "on a thread": lambda: reported(on_a_thread),
    "float64": lambda: reported(float64),
    "beside the loss": lambda: reported(beside_the_loss),
    "all": lambda: reported(trained),
}

ASKS = {
    "error": lambda report: float(report.local_error("linear")),
    "error what if": lambda report: float(report.local_error("linear", what_if=True)),
    "error backward": lambda report: float(report.local_error("linear", backward=True)),
    "error of norm what if": lambda report: float(report.local_error("layer_norm", what_if=True)),
    "error of poisson": lambda report: float(report.local_error("poisson")),
    "error of conv2d": lambda report: float(report.local_error("conv2d")),
    "share": lambda report: report.error_share("linear"),
    "share what if": lambda report: report.error_share("linear", what_if=True),
    "share of poisson": lambda report: report.error_share("poisson"),
    "share of conv2d": lambda report: report.error_share("conv2d"),
    "shares": lambda report: max(report.error_shares().values()),
    "change": lambda report: abs(report.loss_change("linear")),
    "change what if": lambda report: abs(report.loss_change("linear", what_if=True)),
    "change of conv2d": lambda report: report.loss_change("conv2d"),
    "errors": lambda report: max(report.errors().values()),
    "presets": lambda report: max(report.presets().values()),
    "forecast": lambda report: report.forecast("balanced"),
    "edits": lambda report: len(report.edits()),
    "edits of modules": lambda report: len(report.edits(per="module")),
}

NO_VALUES = "nothing was measured: make the report with hmp.report(values=True)"
NO_OP = "no op was seen: the report sees eager calls, in the process that it was made in"
NO_POLICY = "no policy was in force, so no list has an effect: call hmp.convert"
NO_BACKWARD = "no backward pass was seen, so it is not known which op makes the error: call backward"
NO_GRADIENTS = "no backward pass was seen: call backward in the block of the report"
NOT_FINITE = "the loss or its gradients are not finite or are zero, so it is not known which op makes the error"
NO_LOSS = "no backward pass of a loss was seen, so the change of a loss is not known: error_share is known"
NOT_LOW = "no op that ran in float32 was measured in the low dtype: hmp.report(values=True) measures it"
NEVER = "'conv2d' was not called in the block, or only in compiled code"
NO_NORM = "'layer_norm' was not called in the block, or only in compiled code"
NO_POISSON = "'poisson' was not called in the block, or only in compiled code"
COMPILED = 'compiled code ran, and a report does not see what it rounds: run the step under torch.compiler.set_stance("force_eager")'
RAISED = "a backward pass raised an error before its end, so it is not known which op makes the error: open"
UNREACHED = "the backward pass reached no op whose error is measured, so it is not known which op makes the error: "
NONE_MEASURED = "no op was measured, so no edit is known to be worth it: no policy changes float64"
THREAD = "the error of linear is not measured: another thread than the report's called it"
UNMEASURED = "the error of poisson is not measured: it "
SOME, ZERO = "more than 0", "0"  # what is measured
SHARES = ("share", "share what if", "shares")
CHANGES = ("change", "change what if")
EDITS = ("presets", "forecast", "edits", "edits of modules")
ERRORS = ("errors", *SHARES)
CALLED_NEVER = {each: NEVER for each in ASKS if each.endswith("conv2d")} | {
    each: NO_POISSON for each in ASKS if each.endswith("poisson")
}


def answers(*asks, of):
    return dict.fromkeys(asks, of)


MEASURED = CALLED_NEVER | answers(*(set(ASKS) - set(CALLED_NEVER)), of=SOME)
EXPECTED = {
    "no values": answers(*ASKS, of=NO_VALUES),
    "no op": answers(*ASKS, of=NO_OP),
    "no policy": MEASURED
    | answers("error", "error backward", "errors", "share", "shares", "change", *EDITS, of=NO_POLICY),
    "no backward": MEASURED | answers(*ERRORS, *CHANGES, *EDITS, of=NO_BACKWARD) | {"error backward": NO_GRADIENTS},
    "no grad": MEASURED | answers(*ERRORS, *CHANGES, *EDITS, of=NO_BACKWARD) | {"error backward": NO_GRADIENTS},
    "loss is NaN": MEASURED
    | answers(*ERRORS, *CHANGES, *EDITS, of=NOT_FINITE)
    | {"error backward": "the error of linear is not measured: all its numbers are zero or not finite in float32"},
    "projected": MEASURED | answers(*CHANGES, of=NO_LOSS) | {"error backward": NO_GRADIENTS},
    "errors": MEASURED | answers("error of norm what if", "share what if", "change what if", of=NOT_LOW),
    "all in float32": MEASURED
    | answers("error", "error backward", "errors", "share", "shares", "change", "edits", "edits of modules", of=ZERO),
    "not again": MEASURED
    | {"error of norm what if": NO_NORM}
    | answers("error of poisson", "share of poisson", of=UNMEASURED),
    "partly compiled": MEASURED | answers(*ERRORS, *CHANGES, *EDITS, of=COMPILED),
    "backward raised": MEASURED | answers(*ERRORS, *CHANGES, *EDITS, of=RAISED),
    "on a thread": MEASURED
    | answers("error", "error backward", "share", "change", of=THREAD)
    | answers("error what if", "error of norm what if", "share what if", "change what if", of=NOT_LOW)
    | answers("errors", "shares", *EDITS, of=UNREACHED),
    "float64": MEASURED
    | answers("error", "error backward", "share", "change", of=ZERO)
    | answers("error what if", "error of norm what if", "share what if", "change what if", of=NOT_LOW)
    | answers("errors", "shares", *EDITS, of=NONE_MEASURED),
    "beside the loss": MEASURED
    | answers(*ERRORS, *CHANGES, *EDITS, of=UNREACHED)
    | {"error backward": "the error of linear is not measured: it ran inside an op that is measured as a whole"},
    "all": MEASURED,
}


@pytest.fixture(scope="module")
def reports():
    return {name: make() for name, make in KINDS.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_report_answers_what_was_measured_and_no_zero_for_the_rest(kind, reports):
    wanted = EXPECTED[kind]
    assert {name: answer(ask, reports[kind], wanted[name]) for name, ask in ASKS.items()} == wanted


def answer(ask, report, wanted):
    try:
        return SOME if ask(report) > 0 else ZERO
    except (RuntimeError, ValueError) as error:
        return wanted if str(error).startswith(wanted) else str(error)


@pytest.mark.parametrize(
    "kind", ["no policy", "no backward", "loss is NaN", "backward raised", "float64", "beside the loss"]
)
def test_the_reason_is_the_one_that_is_printed(kind, reports):
    with pytest.raises(RuntimeError) as raised:
        reports[kind].edits()
    text, evidence = str(raised.value).split(": ", 1)
    assert (text, evidence) in [(line.text, line.evidence) for line in reports[kind].advice]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("partly compiled", COMPILED), ("backward raised", RAISED)],
)
def test_the_head_has_no_error_of_a_part(kind, reason, reports):
    """It had the error of the ops that ran uncompiled, and of a loss outside of a compiled model 0."""
    text = " ".join(str(reports[kind]).split())
    assert f"error of the loss: not known; {reason.split(':')[0]}" in text
    assert "foretold" not in text
    assert "no policy was in force" not in text
    assert "% of the error of" not in text


def test_what_was_never_called_in_a_module_is_named():
    report = reported(trained)
    with pytest.raises(ValueError, match=r"^'linear' was not called in 'norm', or only in compiled code$"):
        report.local_error("linear", "norm")
    with pytest.raises(ValueError, match=r"^'linear' was not called outside of modules, "):
        report.error_share("linear", "")


def test_what_is_not_measured_has_no_curve(reports):
    class Writer(dict):
        def add_scalar(self, name, value, step):
            self[name] = value

    curves = Writer()
    reports["not again"].to_tensorboard(curves)
    assert curves["habana_mp/error/linear"] > 0
    assert "habana_mp/error/poisson" not in curves


def test_the_head_says_what_its_error_lacks(reports):
    """It printed the error of the other ops as that of the loss."""
    heads = {kind: " ".join(str(reports[kind]).split()) for kind in ("not again", "all")}
    assert ", without what poisson may round, which is not measured; foretold:" in heads["not again"]
    assert "without what" not in heads["all"]


@pytest.mark.parametrize(
    ("script", "options", "said"),
    [
        ("", ["--values", "--max-error", "0.5"], f"--max-error 0.5: {NO_OP}"),
        ("", ["--max-casts", "3"], f"--max-casts 3: {NO_OP}"),
        ("from habana_mp import hmp\nhmp.revert()\nimport torch\ntorch.ones(2, 2) @ torch.ones(2, 2)\n",
         ["--values", "--max-error", "0.5"], "--max-error 0.5: no policy was in force"),
        ("import torch\ntorch.ones(2, 2) @ torch.ones(2, 2)\n", ["--values", "--max-error", "0.5", "--max-casts", "3"], ""),
    ],
    ids=["error, no op", "casts, no op", "no policy", "measured"],
)  # fmt: skip
def test_a_gate_does_not_pass_where_nothing_was_measured(script, options, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(script)
    done = CliRunner().invoke(main, ["report", *options, "train.py"])
    hmp.revert()
    assert done.exit_code == bool(said), done.stderr
    assert said in done.stderr


def in_turn(*steps):
    """A step that is another one in the second run."""
    done = []  # what a step collects in a list of its own stays

    def step():
        done.append(len(done))
        return steps[done[-1] % len(steps)]()

    return step


def beside_a_recording():
    """As habana-mp compare does."""
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh())
    with tempfile.TemporaryDirectory() as folder:
        with hmp.record(f"{folder}/a.rec") as run:
            run.returns(model(X.exp()))
        with torch.no_grad():
            model[0].weight += 1
        return hmp.compare(lambda: model((X + 0.1).exp()), f"{folder}/a.rec")


NUMBERS = torch.arange(4)
COMPARED = {  # the op, and why its difference is not measured
    "only in a": (lambda: hmp.compare(in_turn(lambda: X.sin().cos(), X.sin), None), "cos", "run b has no such call"),
    "only in b": (lambda: hmp.compare(in_turn(X.sin, lambda: X.sin().cos()), None), "cos", "run a has no such call"),
    "a recording": (beside_a_recording, "linear", "its inputs in run a, which was another process, are gone"),
    "other sizes": (lambda: hmp.compare(in_turn(X.sin, X[:8].sin), None), "sin", "its results have different sizes, [64, 16] in run a and [8, 16] in run b"),
    "whole numbers": (lambda: hmp.compare(in_turn(lambda: NUMBERS + 1, lambda: NUMBERS * 1 + 2), None), "add", "it cannot run once more as in run a"),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPARED)
def test_what_a_comparison_does_not_measure_has_its_reason(name):
    compared, op, reason = COMPARED[name]
    found = compared()
    (row,) = (row for row in found.rows if row.op == op)
    assert (row.total is None or row.made is None, row.unmeasured) == (True, reason)
    text = str(found)
    assert "?" not in text
    assert reason in text or f"{row.kind}" in text
    assert re.search(r"not measured|only in", found.to_html())
    assert reason in json.loads(found.to_json())["rows"][found.rows.index(row)]["unmeasured"]


def test_all_that_is_measured_has_no_reason():
    found = hmp.compare(lambda: loss_of(Net()).backward(), None, "hmp")
    assert {row.unmeasured for row in found.rows if row.made is not None and row.total is not None} == {""}
    assert all(row.unmeasured for row in found.rows if row.made is None or row.total is None)


@pytest.mark.parametrize("values", [True, "errors"])
def test_what_torch_autocast_casts_is_measured(values):
    """It casts inside the op. With values=True an op that was given float32 had the error 0."""
    net = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 8))

    def measured(region):
        with region, hmp.report(values=values) as report:
            net(X).float().square().mean().backward()
        return report.local_error("linear", "0"), report.local_error("linear", "2")

    found = measured(torch.autocast("cpu"))
    assert 1e-4 < found[0].relative < 1e-2
    assert found == measured(hmp.autocast("cpu", policy="torch-cpu"))


@pytest.mark.parametrize("values", [True, "errors"])
def test_what_torch_autocast_casts_and_cannot_run_again_has_a_reason(values):
    """It was given float32, so that it looked exact, and its error was 0."""
    weight = torch.eye(8).to_sparse()
    with torch.autocast("cpu"), hmp.report(values=values) as report:
        made = torch.sparse.mm(weight, torch.randn(8, 4))
        F.linear(X, torch.randn(4, 16))
    assert made.dtype == torch.bfloat16
    with pytest.raises(
        RuntimeError, match="error of _sparse_mm is not measured: it has float64, sparse or other special"
    ):
        report.local_error("_sparse_mm")
    assert "_sparse_mm" in str(report).partition("not measured")[0].rpartition("\n")[2]
    assert 0 < report.local_error("linear").relative < 1e-2


@pytest.mark.parametrize("values", [True, "errors"])
def test_what_torch_autocast_casts_inside_an_op_is_measured(values):
    """It has no kernel of lstm_cell on the CPU. The cell gets and gives float32, and its error was 0."""
    cell = nn.LSTMCell(16, 8)
    with torch.autocast("cpu"), hmp.report(values=values) as report:
        assert cell(X)[0].dtype == torch.float32
    assert 1e-5 < report.local_error("lstm_cell").relative < 1e-2
