"""Questions about an op or a module that a report has not seen raise, with the nearest names; its rows; a report outside of any policy."""

from __future__ import annotations

import re

import pytest
import torch
from measured_net import NORM_WIDE, Net, loss_of

from habana_mp import hmp
from habana_mp.results import LocalError, OpCalls, PolicyDiff


def reported(policy=NORM_WIDE, values=True):
    torch.manual_seed(0)
    with hmp.report(values=values) as report:
        if policy is None:
            loss_of(Net()).backward()
        else:
            with hmp.autocast("cpu", policy=policy):
                loss_of(Net()).backward()
    return report


@pytest.fixture(scope="module")
def report():
    return reported()


ASKS = {
    "casts": lambda report, op, module: report.casts(op, module=module),
    "cache_hits": lambda report, op, module: report.cache_hits(op, module=module),
    "backward_casts": lambda report, op, module: report.backward_casts(op, module=module),
    "local_error": lambda report, op, module: report.local_error(op, module),
    "error_share": lambda report, op, module: report.error_share(op, module),
    "loss_change": lambda report, op, module: report.loss_change(op, module),
}


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize(
    ("op", "module", "message"),
    [
        ("conv2d", None, "'conv2d' was not called in the block, or only in compiled code"),
        ("batch_norm", None, "'batch_norm' was not called in the block, or only in compiled code. Did you mean 'layer_norm'?"),
        (None, "nrom", "no op ran in a module 'nrom'. Did you mean 'Net: norm'?"),
        (None, "decoder.7", "no op ran in a module 'decoder.7'"),
    ],
)  # fmt: skip
def test_what_was_never_seen_raises_and_names_what_is_near(report, ask, op, module, message):
    with pytest.raises(ValueError, match=rf"^{re.escape(message)}"):
        ASKS[ask](report, op, module)


def test_an_op_and_a_module_that_are_there_apart_have_no_casts(report):
    assert report.casts("linear", module="norm") == 0
    with pytest.raises(ValueError, match="'linear' was not called in 'norm'"):
        report.local_error("linear", "norm")


def test_an_open_report_answers_for_what_ran_by_then():
    with hmp.report() as report:
        with pytest.raises(ValueError, match="'mm' was not called"):
            report.casts("mm")
        torch.ones(2, 2).mm(torch.ones(2, 2))
        assert report.casts("mm") == 0


def test_rows_have_what_the_methods_answer(report):
    rows = report.rows
    assert len(rows) == len(report.to_dict()["rows"])
    assert all(isinstance(row, OpCalls) for row in rows)
    linear = [row for row in rows if row.op == "linear"]
    assert sum(row.casts for row in linear) == report.casts("linear")
    assert sum(row.backward_casts for row in linear) == report.backward_casts("linear")
    assert sum(row.share for row in linear) == pytest.approx(report.error_share("linear"))
    assert all(isinstance(row.error, LocalError) and float(row.error) > 0 for row in linear)
    assert linear[0].runs_in == ("bfloat16",)
    assert repr(linear[0]).startswith(f"<OpCalls: linear in {linear[0].module}, lower, 1 call, ")


def test_rows_without_values_have_no_errors():
    assert {(row.error, row.share) for row in reported(values=False).rows} == {(None, None)}


def test_a_report_outside_of_any_policy_says_so():
    report = reported(policy=None)
    assert report.casts() == 0
    assert repr(report).endswith(" rows, no policy was in force>")
    assert "no policy was in force" in str(report).splitlines()[2]
    assert "no policy was in force" in report.advice[0].text
    assert "<b>no policy was in force</b>" in report.to_html()
    assert report.diff(reported()).names[0] == "no policy was in force"
    assert {row.error for row in report.rows} == {None}
    for ask in (report.local_error, report.error_share, report.loss_change, report.edits, report.presets):
        with pytest.raises(RuntimeError, match="no policy was in force"):
            ask()
    assert float(report.local_error("linear", what_if=True)) > 0, "what it would be is known"


def test_without_values_it_has_the_same_advice():
    (line,) = reported(policy=None, values=False).advice
    assert line == reported(policy=None).advice[0]
    assert line.evidence.startswith("call hmp.convert, or enter hmp.autocast")


def test_a_report_under_a_policy_does_not():
    report = reported()
    assert "no policy was in force" not in repr(report) + str(report)
    assert "<b>no policy was in force</b>" not in report.to_html()


RESULTS = {
    "report": reported,
    "row": lambda: reported().rows[0],
    "edit": lambda: reported().edits()[0],
    "difference of reports": lambda: reported().diff(reported(policy="hmp")),
    "difference of policies": lambda: PolicyDiff.between(hmp.Policy.load("hmp"), hmp.Policy.load("balanced")),
    "comparison": lambda: hmp.compare(lambda: loss_of(Net()).backward(), None, "hmp"),
    "row of a comparison": lambda: hmp.compare(lambda: loss_of(Net()).backward(), None, "hmp").rows[0],
    "tuned": lambda: hmp.tune(lambda: loss_of(Net()), 1e-2, cost="numbers"),
    "part": lambda: hmp.tune(lambda: loss_of(Net()), 1e-2, cost="numbers").parts[0],
    "point": lambda: hmp.tune(lambda: loss_of(Net()), 1e-2, cost="numbers").chosen,
    "explanation": lambda: hmp.explain("softmax", policy="hmp"),
    "not finite": lambda: hmp.find_nonfinite(lambda: torch.full((2, 2), 3e38) * torch.tensor(10.0)),
}


@pytest.mark.parametrize("kind", RESULTS)
def test_the_repr_of_a_result_is_a_short_line(kind):
    text = repr(RESULTS[kind]())
    assert re.fullmatch(r"<\w+: [^\n]{1,150}>", text), text
