"""The head of the advice: which edits to take, what they leave, and how to try them. And what invites to measure."""

from __future__ import annotations

import contextlib

import fake_reports
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp
from habana_mp._report.edits.edits import Edit
from habana_mp._report.findings.advice import with_advice
from habana_mp._report.findings.beginning import Beginning, beginning, how_to_try
from habana_mp._report.findings.preset_errors import invitation
from habana_mp._report.form import report_of


def edit(op, after, seconds=0.0, lost=0, listed="fp32"):
    return Edit(f"+{op}:{listed}", op, 0.1, 0, "", 0, seconds, 1.0, after, after, "why", lost=lost, _list=listed)


def off(**changes):
    """A report whose loss is off by 1."""
    row = fake_reports.row("mm", values=fake_reports.values(losses=[fake_reports.loss(1.0)]))
    made = fake_reports.summed([row], low_dtype="bfloat16", projected_squares=0.0, edges=[])
    return report_of(fake_reports.with_losses(made) | changes)


@pytest.mark.parametrize(
    ("afters", "taken"),
    [
        pytest.param([0.5, 0.2, 0.19, 0.18], 2, id="the third gains 5 %"),
        pytest.param([1.0, 0.5], 2, id="the first helps when the second is there"),
        pytest.param([0.5, 0.48, 0.2], 3, id="on average"),
        pytest.param([0.93, 0.9], 0, id="none gains a tenth"),
        pytest.param([0.9], 1, id="a tenth"),
    ],
)
def test_edits_are_taken_as_far_as_each_gains_a_tenth_of_what_is_left(afters, taken):
    found = [edit(f"op{number}", after) for number, after in enumerate(afters)]
    head = beginning(off(), [*found, edit("relu", 0.1, listed="lower")])
    assert head.edits == tuple(found[:taken])
    assert head.errors == ((("the loss", 1.0, afters[taken - 1]),) if taken else ())


def test_without_edits_there_is_no_head():
    assert beginning(off(), []) is None


THE_LOSS = (("the loss", 1.0, 0.2),)
TWO = (("the loss of gan.py:41", 1.0, 0.2), ("the loss of gan.py:47", 0.02, 0.0))


@pytest.mark.parametrize(
    ("edits", "errors", "rounding", "said"),
    [
        ([edit("mul", 0.2, 0.03)], THE_LOSS, (), "+mul:fp32 leaves 0.2 of 1, the error of the loss; +3.0 % a step"),
        ([edit("mul", 0.5, -0.2), edit("exp", 0.2, 0.1)], THE_LOSS, (), "these 2 edits leave 0.2 of 1, the error of the loss; -10 % a step"),
        ([edit("mul", 0.2, -1.4)], THE_LOSS, (), "+mul:fp32 leaves 0.2 of 1, the error of the loss; no time that can be measured"),
        ([edit("sum", None, lost=16)], (), (), "+sum:fp32 keeps 16 numbers finite; no time"),
        ([edit("sum", None, lost=1), edit("exp", 0.2)], THE_LOSS, (), "these 2 edits keep 1 number finite and leave 0.2 of 1, the error of the loss; no time"),
        ([edit("mul", 0.2)], TWO, (), "+mul:fp32 leaves 0.2 of 1, the error of the loss of gan.py:41, and 0 of 0.02, the error of the loss of gan.py:47; no time"),
        ([edit("mul", 0.0)], (("the outputs", 0.1, 0.0),), (), "+mul:fp32 leaves 0 of 0.1, the error of the outputs; no time; then nothing is rounded, as without a policy"),
        ([edit("mul", 0.0)], (("the outputs", 0.1, 0.0),), ("matmul",), "+mul:fp32 leaves 0 of 0.1, the error of the outputs; no time; matmul still rounds, which no error here has"),
        ([edit("mul", 0.0)], (("the outputs", 0.1, 0.0),), ("matmul", "t"), "+mul:fp32 leaves 0 of 0.1, the error of the outputs; no time; matmul and 1 other op still round, which no error here has"),
        ([], (), (), "no edit takes away 10 % of the error"),
    ],
    ids=["one", "two", "more than a step", "lost", "lost and error", "two losses", "nothing left", "an op without a share", "two of them", "none"],
)  # fmt: skip
def test_the_head_in_words(edits, errors, rounding, said):
    assert str(Beginning(tuple(edits), errors, 1.0, rounding)) == said


class Chain(nn.Module):
    def __init__(self, low=False, between=lambda y: y):
        super().__init__()
        self.first, self.last, self.between = nn.Linear(16, 32), nn.Linear(32, 8), between
        self.to(torch.bfloat16 if low else torch.float32)

    def forward(self, x):
        return self.last(self.between(self.first(x)))


def dropped(y):
    """As in attention of transformers: with the edit of linear, dropout is given float32 and rounds."""
    return F.dropout(y.float().softmax(-1).to(y.dtype), 0.0, training=True)


@pytest.mark.parametrize(
    ("net", "given", "said"),
    [
        pytest.param(Chain(), torch.float32, "; then nothing is rounded, as without a policy", id="float32"),
        pytest.param(Chain(low=True), torch.bfloat16, "", id="weights in bfloat16"),
        pytest.param(Chain(), torch.bfloat16, "", id="inputs in bfloat16"),
        pytest.param(
            Chain(between=lambda y: y.float().to(torch.bfloat16)), torch.float32, "", id="a cast of the program"
        ),
        pytest.param(
            Chain(between=dropped), torch.float32, "; dropout stays in the lower list, and may round then", id="dropout"
        ),
    ],
)
def test_that_nothing_is_rounded_is_said_only_where_it_is_so(net, given, said):
    policy = hmp.Policy.from_ops(lower=["linear", "dropout"], fp32=["softmax", "mean", "square"], name="own")
    with hmp.report(values=True) as report:
        for seed in range(4):
            x = torch.randn(8, 16, generator=torch.Generator().manual_seed(seed))
            with hmp.autocast("cpu", policy=policy):
                net(x.to(given)).float().square().mean().backward()
    head = beginning(report._data(), report.edits())
    assert [edit.text for edit in head.edits] == ["+linear:fp32"]
    assert head.errors[0][2] == 0
    assert head._exact() == said


LOST = {**fake_reports.ERROR, "lost": 3}
HMP = {"name": "hmp", "text": str(hmp.Policy.load("hmp")), "front_end": "convert"}
EDITED = HMP | {"text": str(hmp.Policy.load("hmp").with_edits("+linear:fp32", "-softmax", "+mul in b.*:fp32"))}
BALANCED = hmp.Policy.load("balanced")
IN_FP16 = HMP | {
    "name": "balanced+edits",
    "text": str(BALANCED.with_low_dtype("fp16").with_edits("+linear:fp32", "+mul in c:fp32")),
}
FROM_FILE = HMP | {"name": "balanced+files", "text": str(BALANCED.with_edits("+gelu:lower"))}
FROM_LISTS = HMP | {"name": "balanced+files", "text": "name=balanced+files lower=mm"}
DAMAGED = HMP | {"text": "name=hmp lower"}
OWN = {"name": "custom", "text": "name=custom lower=mm", "front_end": "convert"}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"title": "a b.py", "policies": [HMP]}, "habana-mp report --values --policy hmp --edit +mul:fp32 --edit '+mul in a.*:fp32' 'a b.py'"),
        ({"title": "t.py", "policies": [EDITED]}, "habana-mp report --values --policy hmp --edit +linear:fp32 --edit -softmax --edit '+mul in b.*:fp32' --edit +mul:fp32 --edit '+mul in a.*:fp32' t.py"),
        ({"title": "t.py", "policies": [IN_FP16]}, "habana-mp report --values --policy balanced --low-dtype float16 --edit +linear:fp32 --edit '+mul in c:fp32' --edit +mul:fp32 --edit '+mul in a.*:fp32' t.py"),
        ({"title": "t.py", "policies": [FROM_FILE]}, "habana-mp report --values --policy balanced --edit +gelu:lower --edit +mul:fp32 --edit '+mul in a.*:fp32' t.py"),
        ({"title": "t.py", "policies": [FROM_LISTS]}, "the same command with --edit +mul:fp32 --edit '+mul in a.*:fp32' before t.py"),
        ({"title": "t.py", "policies": [DAMAGED]}, "policy = policy.with_edits('+mul:fp32', '+mul in a.*:fp32')"),
        ({"title": "", "policies": [HMP]}, "policy = hmp.Policy.load('hmp').with_edits('+mul:fp32', '+mul in a.*:fp32')"),
        ({"title": "pack.train", "policies": [HMP]}, "policy = hmp.Policy.load('hmp').with_edits('+mul:fp32', '+mul in a.*:fp32')"),
        ({"title": "t.py", "policies": [HMP | {"front_end": "autocast"}]}, "policy = hmp.Policy.load('hmp').with_edits('+mul:fp32', '+mul in a.*:fp32')"),
        ({"title": "t.py", "policies": [OWN]}, "policy = policy.with_edits('+mul:fp32', '+mul in a.*:fp32')"),
        ({"title": "t.py", "policies": [HMP, OWN]}, "policy = policy.with_edits('+mul:fp32', '+mul in a.*:fp32')"),
    ],
    ids=["script", "edited before", "edited in float16", "from an edit of a list", "from another list", "damaged", "python", "module", "region", "own policy", "two policies"],
)  # fmt: skip
def test_how_to_try_edits(changes, line):
    assert how_to_try(off(**changes), ["+mul:fp32", "+mul in a.*:fp32"]) == line


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(16, 64), nn.LayerNorm(64), nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.norm(self.a(x)))


def trained(values):
    torch.manual_seed(0)
    net = Net()
    with hmp.report(values=values) as report:
        net(torch.randn(8, 16)).float().square().mean().backward()
    return report


def test_the_table_has_the_head_above_the_advice():
    hmp.convert()
    report = trained(values=True)
    head = beginning(report._data(), report.edits())
    lines = str(report).splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("1. "))
    above = " ".join(lines[:at])
    assert head.edits
    assert str(head) in above
    assert f"policy = hmp.Policy.load('hmp').with_edits({head.edits[0].text!r}" in above


def test_casts_of_an_op_are_no_advice():
    hmp.convert()
    report = trained(values=False)
    assert report.casts("linear") > 0
    assert not [line for line in report.advice if line.text.startswith("linear: ")]


def test_edits_leave_room_for_what_costs_most():
    made = fake_reports.small() | {"op_seconds": 0.01, "low_dtype": "bfloat16", "projected_squares": 0.0, "edges": []}
    names = [f"op{number}" for number in range(9)]
    made["rows"] += [fake_reports.row(op, values=fake_reports.values(calls=1, ran=LOST)) for op in names]
    lines = with_advice(report_of(made)).advice
    assert [line.text.partition(":")[0] for line in lines[:3]] == ["+op0", "+op1", "+op2"]
    assert any("there and back" in line.text for line in lines)
    assert any("is cast to bfloat16 8 times" in line.text for line in lines)


def test_a_report_without_values_under_the_lists_of_the_guides_invites():
    hmp.convert()
    found = trained(values=False)
    assert "balanced" in invitation(found._data())
    assert "hmp has the lists of Habana's guides" in str(found)
    assert str(found) == str(found), "whatever was printed before"
    assert invitation(trained(values=True)._data()) == "", "it has the errors"


@pytest.mark.parametrize("policy", ["balanced", "torch-cpu"])
def test_elsewhere_nothing_invites(policy):
    hmp.convert(policy=policy)
    assert invitation(trained(values=False)._data()) == ""


def test_in_a_region_nothing_invites():
    with hmp.autocast("cpu", policy="hmp"):
        assert invitation(trained(values=False)._data()) == ""


@pytest.mark.parametrize("title", ["weight_int8", "int8"])
@pytest.mark.parametrize("front_end", ["convert", "autocast"])
@pytest.mark.parametrize(
    ("base", "head", "grad", "said"),
    [
        pytest.param(True, True, True, True, id="trained"),
        pytest.param(True, True, False, False, id="no_grad"),
        pytest.param(False, True, True, False, id="trained beside a frozen one"),
        pytest.param(False, False, True, False, id="frozen"),
    ],
)
def test_a_list_in_8_bits_that_no_call_followed_is_said_with_the_way_out_d56(base, head, grad, said, front_end, title):
    net = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 4))
    net[0].requires_grad_(base)
    net[1].requires_grad_(head)
    policy = hmp.Policy.load("hmp").with_edits(f"+linear:{title}")
    if front_end == "convert":
        hmp.convert(policy=policy)
    region = hmp.autocast("cpu", policy=policy) if front_end == "autocast" else contextlib.nullcontext()
    with hmp.report() as report, region, torch.set_grad_enabled(grad):
        net(torch.randn(2, 16))
    rows = report.to_dict()["rows"]
    ran = {(row["decision"], row["instead_of"]) for row in rows if row["op"] == "linear"}
    trained = {("lower", title)} if grad and head else set()
    assert ran == trained | ({(title, "")} if not (base and grad) else set())
    lines = [each["text"] for each in report.to_dict()["advice"] if "the lower list" in each["text"]]
    expected = f"linear ran as in the lower list, and {title} names it: its weight requires a gradient, or is none that 8 bits are for"
    assert lines == [expected] * said


class Own(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


# Frozen layers under `hmp.convert`: what they are given, the region round the call, and whether the region decides too.
REFUSED = {
    "a subclass": (lambda: torch.randn(2, 16).as_subclass(Own), contextlib.nullcontext),
    "meta": (lambda: torch.randn(2, 16, device="meta"), contextlib.nullcontext),
    "torch.autocast": (lambda: torch.randn(2, 16), lambda: torch.autocast("cpu", dtype=torch.bfloat16)),
    "hmp.autocast": (lambda: torch.randn(2, 16), lambda: hmp.autocast("cpu", policy="balanced")),
}


@pytest.mark.filterwarnings("ignore:.*autocast")
@pytest.mark.parametrize(("given", "region"), REFUSED.values(), ids=REFUSED)
def test_convert_says_what_ran_as_lower_in_place_of_8_bits(given, region):
    x = given()
    layer = nn.Linear(16, 16, device=x.device).requires_grad_(False)
    hmp.convert(policy=hmp.Policy.load("balanced").with_edits("+linear:int8"))
    with hmp.report() as report, region():
        layer(x)
    rows = [row for row in report.to_dict()["rows"] if row["op"] == "linear" and row["front_end"] == "convert"]
    assert [(row["decision"], row["instead_of"]) for row in rows] == [("lower", "int8")]
