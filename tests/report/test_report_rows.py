"""The rows of a report: exact counts of calls and casts by op, module and decision, and what ``casts`` finds in them."""

from __future__ import annotations

import functools
import gc
import inspect
import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from habana_mp import hmp

HERE = Path(__file__).name
X, W, B, LOW = torch.randn(4, 8), torch.randn(8, 8), torch.randn(8), torch.randn(4, 8).bfloat16()
TO_LOW, TO_FP32 = ("float32", "bfloat16"), ("bfloat16", "float32")


class Table:
    """The rows of a report under short names: op -> (front end, decision, calls, dtypes, runs_in, {from->to: count})."""

    def __init__(self, report):
        self.rows = report.to_dict()["rows"]

    def of(self, op, decision=None):
        found = [row for row in self.rows if row["op"] == op and decision in (None, row["decision"])]
        assert len(found) == 1, [(row["op"], row["decision"]) for row in self.rows]
        return found[0]

    def decided(self):
        return {row["op"]: row["decision"] for row in self.rows}


def counts(row):
    return {(cast["from"], cast["to"]): cast["count"] for cast in row["casts"]}


def under(front_end, function, policy="hmp"):
    with hmp.report() as report:
        if front_end == "convert":
            hmp.convert(policy=policy)
            function()
            hmp.revert()
        else:
            with hmp.autocast("cpu", policy=hmp.Policy.load(policy) if isinstance(policy, str) else policy):
                function()
    return report


# op, call, decision, casts, bytes, dtypes, runs_in, rule
CONVERTED = {
    "lower": ("mm", lambda: torch.mm(X, W), "lower", {TO_LOW: 2}, 192, ["float32"], ["bfloat16"], "lower: mm, lists/hmp/lower.txt:24"),
    "lower, already low": ("mm", lambda: torch.mm(LOW, LOW.mT), "lower", {}, 0, ["bfloat16"], ["bfloat16"], "lower: mm, lists/hmp/lower.txt:24"),
    "lower, bias": ("linear", lambda: F.linear(X, W, B), "lower", {TO_LOW: 3}, 208, ["float32"], ["bfloat16"], "lower: linear, lists/hmp/lower.txt:22"),
    "operator": ("matmul", lambda: X @ W, "lower", {TO_LOW: 2}, 192, ["float32"], ["bfloat16"], "lower: matmul, lists/hmp/lower.txt:23"),
    "method": ("mm", lambda: X.mm(W), "lower", {TO_LOW: 2}, 192, ["float32"], ["bfloat16"], "lower: mm, lists/hmp/lower.txt:24"),
    "fp32": ("softmax", lambda: F.softmax(LOW, -1), "fp32", {TO_FP32: 1}, 128, ["bfloat16"], ["float32"], "fp32: softmax, lists/hmp/fp32.txt:16"),
    "promote": ("add", lambda: X + LOW, "promote", {TO_FP32: 1}, 128, ["bfloat16", "float32"], ["float32"], "promote: add, lists/hmp/promote.txt:4"),
    "promote, one dtype": ("add", lambda: X + X, "promote", {}, 0, ["float32"], ["float32"], "promote: add, lists/hmp/promote.txt:4"),
    "list": ("cat", lambda: torch.cat([X, LOW, LOW[:2]]), "promote", {TO_FP32: 2}, 192, ["bfloat16", "float32"], ["float32"], "promote: cat, lists/hmp/promote.txt:6"),
    "list by keyword": ("cat", lambda: torch.cat(tensors=[X, LOW]), "promote", {TO_FP32: 1}, 128, ["bfloat16", "float32"], ["float32"], "promote: cat, lists/hmp/promote.txt:6"),
    "one tensor twice in a list": ("cat", lambda: torch.cat([X, LOW, LOW]), "promote", {TO_FP32: 1}, 128, ["bfloat16", "float32"], ["float32"], "promote: cat, lists/hmp/promote.txt:6"),
    "one tensor twice": ("mm", lambda: torch.mm(W, W), "lower", {TO_LOW: 1}, 128, ["float32"], ["bfloat16"], "lower: mm, lists/hmp/lower.txt:24"),
    "keywords": ("linear", lambda: F.linear(weight=W, input=X), "lower", {TO_LOW: 2}, 192, ["float32"], ["bfloat16"], "lower: linear, lists/hmp/lower.txt:22"),
    "in place": ("add_", lambda: W.clone()[:4].add_(LOW), "in place", {TO_FP32: 1}, 128, ["bfloat16", "float32"], ["float32"], "promote: iadd, lists/hmp/promote.txt:24"),
    "in place by flag": ("relu", lambda: F.relu(X.clone(), inplace=True), "in place", {}, 0, ["float32"], ["float32"], "lower: relu, lists/hmp/lower.txt:27"),
    "first input": ("lerp", lambda: torch.lerp(X, LOW, 0.5), "first input", {TO_FP32: 1}, 128, ["bfloat16", "float32"], ["float32"], "rest: first_input"),
    "norm": ("layer_norm", lambda: F.layer_norm(X, (8,), B, B), "lower", {TO_LOW: 1}, 64, ["float32"], ["bfloat16"], "lower: layer_norm, lists/hmp/lower.txt:20"),
    "float64": ("mm", lambda: torch.mm(W.double(), W.double()), "left alone", {}, 0, ["float64"], ["float64"], "lower: mm, lists/hmp/lower.txt:24"),
    "dtype=": ("softmax", lambda: F.softmax(LOW, -1, dtype=torch.float32), "left alone", {}, 0, ["bfloat16"], ["bfloat16"], "fp32: softmax, lists/hmp/fp32.txt:16"),
    "out=": ("mm", lambda: torch.mm(X, W, out=torch.empty(4, 8)), "left alone", {}, 0, ["float32"], ["float32"], "lower: mm, lists/hmp/lower.txt:24"),
    "integers": ("add", lambda: torch.arange(4) + 1, "left alone", {}, 0, [], [], "promote: add, lists/hmp/promote.txt:4"),
    "unlisted": ("sin", lambda: torch.sin(X), "unlisted", {}, 0, ["float32"], ["float32"], ""),
}  # fmt: skip


@pytest.mark.parametrize("case", CONVERTED)
def test_a_row_tells_what_convert_did(case):
    op, call, decision, casts, size, dtypes, runs_in, rule = CONVERTED[case]
    report = under("convert", lambda: [call() for _ in range(3)])
    row = Table(report).of(op)
    assert (row["decision"], row["calls"], counts(row)) == (decision, 3, {way: 3 * n for way, n in casts.items()})
    assert sum(cast["bytes"] for cast in row["casts"]) == 3 * size
    assert sum(cast["cached"] for cast in row["casts"]) == 0
    assert (row["dtypes"], row["runs_in"], row["rule"], row["policy"]) == (dtypes, runs_in, rule, "hmp")
    assert row["front_end"] == ("" if decision == "unlisted" else "convert")
    assert row["source"].rpartition("/")[2] == f"{HERE}:{call.__code__.co_firstlineno}"
    assert 0 <= row["cast_seconds"] <= row["seconds"] <= report.to_dict()["seconds"]


AUTOCAST = {
    "lower": ("linear", lambda: F.linear(X, W, B), "lower", {TO_LOW: 3}, ["bfloat16"], "lower: linear, lists/hmp/lower.txt:22"),
    "fp32": ("softmax", lambda: F.softmax(LOW, -1), "fp32", {TO_FP32: 1}, ["float32"], "fp32: softmax, lists/hmp/fp32.txt:16"),
    "promote": ("add", lambda: X + LOW, "promote", {TO_FP32: 1}, ["float32"], "promote: add, lists/hmp/promote.txt:4"),
    "list": ("cat", lambda: torch.cat([X, LOW, LOW]), "promote", {TO_FP32: 1}, ["float32"], "promote: cat, lists/hmp/promote.txt:6"),
    "one tensor twice": ("mm", lambda: torch.mm(W, W), "lower", {TO_LOW: 1}, ["bfloat16"], "lower: mm, lists/hmp/lower.txt:24"),
    "float64": ("mm", lambda: torch.mm(W.double(), W.double()), "left alone", {}, ["float64"], "lower: mm, lists/hmp/lower.txt:24"),
    "in place": ("add_", lambda: X.clone().add_(LOW), "left alone", {}, ["bfloat16", "float32"], "promote: iadd, lists/hmp/promote.txt:24"),
    "in place by flag": ("relu_", lambda: F.relu(X.clone(), inplace=True), "left alone", {}, ["float32"], "lower: relu, lists/hmp/lower.txt:27"),
    "out=": ("mm", lambda: torch.mm(X, W, out=torch.empty(4, 8)), "left alone", {}, ["float32"], "lower: mm, lists/hmp/lower.txt:24"),
    "unlisted": ("sin", lambda: torch.sin(X), "unlisted", {}, ["float32"], ""),
}  # fmt: skip


@pytest.mark.parametrize("case", AUTOCAST)
def test_a_row_tells_what_autocast_did(case):
    op, call, decision, casts, runs_in, rule = AUTOCAST[case]
    row = Table(under("autocast", lambda: [call() for _ in range(2)])).of(op)
    assert (row["decision"], row["calls"], counts(row)) == (decision, 2, {way: 2 * n for way, n in casts.items()})
    assert (row["runs_in"], row["rule"], row["policy"]) == (runs_in, rule, "hmp")


# A call, its decision, and the casts of three such calls. "8 bits": the list itself.
TO_INT8 = ("float32", "int8")
FROZEN = nn.Linear(96, 64).requires_grad_(False)
FLOAT8 = nn.Parameter(torch.randn(64, 96).to(torch.float8_e4m3fn), requires_grad=False)
TRAINED, TRAINED_BIAS = nn.Linear(96, 64), nn.Linear(96, 64)
TRAINED_BIAS.weight.requires_grad_(False)
ROWS = torch.randn(8, 96)
EIGHT_BITS = {
    "trained": (lambda: TRAINED(ROWS), "lower", {TO_LOW: 9}),
    "trained, no_grad": (torch.no_grad()(lambda: TRAINED(ROWS)), "8 bits", {TO_LOW: 3, TO_INT8: 3}),
    "trained, inference mode": (torch.inference_mode()(lambda: TRAINED(ROWS)), "8 bits", {TO_LOW: 3, TO_INT8: 3}),
    "frozen": (lambda: FROZEN(ROWS), "8 bits", {TO_LOW: 3, TO_INT8: 3}),
    "frozen, trained bias": (lambda: TRAINED_BIAS(ROWS), "8 bits", {TO_LOW: 3, TO_INT8: 3}),
    "two activations": (lambda: F.linear(ROWS, FROZEN.weight * 1), "lower", {TO_LOW: 6}),
    "weight in float8": (lambda: F.linear(ROWS, FLOAT8), "lower", {TO_LOW: 3, ("float8", "bfloat16"): 3}),
    "float64": (lambda: F.linear(ROWS.double(), TRAINED.weight.double()), "left alone", {}),
}  # fmt: skip


@pytest.mark.parametrize("front_end", ["convert", "autocast"])
@pytest.mark.parametrize("title", ["weight_int8", "int8"])
@pytest.mark.parametrize("case", EIGHT_BITS)
def test_a_row_tells_which_calls_were_in_8_bits(case, title, front_end, empty_cache):
    call, decision, casts = EIGHT_BITS[case]
    policy = hmp.Policy.from_ops(**{title: ["linear"]})
    row = Table(under(front_end, lambda: [call() for _ in range(3)], policy)).of("linear")
    decision = title if decision == "8 bits" else decision
    assert (row["decision"], row["calls"], counts(row)) == (decision, 3, casts)
    assert [cast["cached"] for cast in row["casts"] if cast["to"] == "int8"] == [2] * (decision == title)
    assert (row["rule"], row["front_end"]) == (f"{title}: linear, custom", front_end)


@pytest.mark.parametrize("front_end", ["convert", "autocast"])
def test_casts_switched_off_leave_rows_that_say_so(front_end):
    def off():
        with hmp.disable_casts():
            torch.mm(X, W)
            torch.sin(X)

    report = under(front_end, off)
    assert Table(report).decided() == {"mm": "off", "sin": "off"}
    assert Table(report).of("mm")["rule"] == "lower: mm, lists/hmp/lower.txt:24"
    assert report.casts() == 0


@pytest.mark.parametrize("front_end", ["convert", "autocast"])
def test_a_python_number_is_no_float64(front_end):
    """torch wraps it into a tensor of float64, which takes the dtype of the others (D38)."""
    row = Table(under(front_end, lambda: X * 0.1, "balanced")).of("mul")
    assert (row["dtypes"], row["runs_in"]) == (["float32"], ["float32"])
    row = Table(under(front_end, lambda: X * torch.tensor(0.1, dtype=torch.float64), "balanced")).of("mul")
    assert row["dtypes"] == ["float32", "float64"]


def test_without_a_policy_all_is_outside():
    with hmp.report() as report:
        torch.mm(X, W)
        with torch.autocast("cpu"):
            torch.mm(X, W)
    assert Table(report).decided() == {"mm": "outside"}
    assert (report.casts(), report.to_dict()["policies"], report.to_dict()["never_seen"]) == (0, [], [])


def test_both_front_ends_have_rows_of_their_own():
    hmp.convert()
    with hmp.report() as report, hmp.autocast("cpu"):
        F.linear(X, W)
        torch.sin(X)
    first, second = (row for row in report.to_dict()["rows"] if row["op"] == "linear")
    assert (first["front_end"], first["policy"], counts(first)) == ("convert", "hmp", {TO_LOW: 2})
    assert (second["front_end"], second["policy"], counts(second)) == ("autocast", "torch-cpu", {})
    assert Table(report).of("sin")["policy"] == "torch-cpu"
    assert [(p["name"], p["front_end"]) for p in report.to_dict()["policies"]] == [
        ("hmp", "convert"),
        ("torch-cpu", "autocast"),
    ]


def test_nested_regions_each_have_their_row():
    own = hmp.Policy.from_ops(fp32=["mm"])
    with hmp.report() as report, hmp.autocast("cpu"):
        torch.mm(X, W)
        with hmp.autocast("cpu", policy=own):
            torch.mm(LOW, W)
        with hmp.autocast("cpu", enabled=False):
            torch.mm(X, W)
        torch.mm(X, W)
    rows = [(row["policy"], row["decision"], row["calls"], counts(row)) for row in report.to_dict()["rows"]]
    assert rows == [
        ("torch-cpu", "lower", 2, {TO_LOW: 4}),
        ("custom", "fp32", 1, {TO_FP32: 1}),
        ("", "outside", 1, {}),
    ]


def test_a_policy_that_changes_in_the_middle_has_rows_of_its_own():
    with hmp.report() as report:
        hmp.convert()
        torch.mm(X, W)
        hmp.convert(policy="hmp-o2")
        torch.mm(X, W)
        hmp.convert(low_precision_type=torch.float16)
        torch.mm(X, W)
        hmp.revert()
        torch.mm(X, W)
        hmp.convert()
        torch.mm(X, W)
    rows = [(row["policy"], row["decision"], row["runs_in"], row["calls"]) for row in report.to_dict()["rows"]]
    assert rows == [
        ("hmp", "lower", ["bfloat16"], 2),
        ("hmp-o2", "lower", ["bfloat16"], 1),
        ("hmp", "lower", ["float16"], 1),
        ("", "outside", ["float32"], 1),
    ]
    assert report.casts("mm", to="float16") == 2
    assert [policy["name"] for policy in report.to_dict()["policies"]] == ["hmp", "hmp-o2", "hmp"]


def region():
    with hmp.autocast("cpu", policy=hmp.Policy.load("hmp").with_edits("+sin:lower")):
        torch.mm(X, W)
        torch.tan(X)


def conversion():
    hmp.convert(policy=hmp.Policy.load("hmp"))
    torch.mm(X, W)
    torch.tan(X)
    hmp.revert()


@pytest.mark.parametrize("step", [region, conversion])
def test_what_is_made_anew_at_each_step_has_the_same_rows(step):
    with hmp.report() as report:
        for _ in range(5):
            step()
    assert [(row["op"], row["calls"]) for row in report.to_dict()["rows"]] == [("mm", 5), ("tan", 5)]


ONE_CALL = {
    "F.softmax": ("softmax", lambda: F.softmax(LOW, -1)),
    "F.log_softmax": ("log_softmax", lambda: F.log_softmax(LOW, -1)),
    "torch.softmax": ("softmax", lambda: torch.softmax(LOW, -1)),
    "F.dropout": ("dropout", lambda: F.dropout(LOW)),
    "F.layer_norm": ("layer_norm", lambda: F.layer_norm(LOW, (8,))),
    "torch.split": ("split", lambda: torch.split(LOW, 2)),
}


@pytest.mark.parametrize("preset", ["hmp", "hmp-o2", "hmp-resnet50"])
@pytest.mark.parametrize("case", ONE_CALL)
def test_a_function_of_python_is_one_call_of_one_row(case, preset):
    """Whatever methods and kernels of its name it calls, and whether a list decides it or the rest."""
    op, call = ONE_CALL[case]
    report = under("convert", call, preset)
    assert [(row["op"], row["calls"]) for row in report.to_dict()["rows"]] == [(op, 1)]


# Cached weights.


def test_casts_from_the_cache_are_counted_and_distinguished():
    layer = nn.Linear(512, 512)
    x = torch.randn(2, 512)
    hmp.convert()
    with hmp.report() as report, torch.no_grad():
        for _ in range(5):
            layer(x)
    [cast] = Table(report).of("linear")["casts"]
    assert (report.casts("linear"), report.cache_hits("linear")) == (15, 4)  # the bias is too small to be kept
    assert (cast["count"], cast["cached"]) == (15, 4)
    assert cast["bytes"] == 2 * (5 * x.numel() + 512 * 512 + 5 * 512)
    kinds = [event[5] for event in report.to_dict()["timeline"]["events"]]
    assert (kinds.count("cast"), kinds.count("cached")) == (11, 4)


def test_casts_made_again_for_a_result_that_is_given_away_count_once():
    """Dropout in eval gives back its input: the kept copy is not for that."""
    hmp.convert()
    kept = torch.randn(512, 512, requires_grad=True)
    with hmp.report() as report, torch.no_grad():
        for _ in range(3):
            F.dropout(kept, training=False)
    assert (report.casts("dropout"), Table(report).of("dropout")["calls"]) == (3, 3)


# Backward passes.


@pytest.mark.parametrize("front_end", ["convert", "autocast"])
def test_backward_casts_belong_to_the_row_of_the_forward_cast(front_end):
    layer, x = nn.Linear(8, 8), X.clone().requires_grad_()
    report = under(front_end, lambda: layer(x).sum().backward())
    [cast] = Table(report).of("linear")["casts"]
    assert (cast["from"], cast["to"], cast["count"]) == ("float32", "bfloat16", 3)
    assert (cast["backward"]["count"], cast["backward"]["bytes"]) == (3, 4 * (32 + 64 + 8))
    assert report.backward_casts("linear", to="bfloat16") == report.to_dict()["backward_casts"] == 3


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "non-reentrant"])
@pytest.mark.parametrize("front_end", ["convert", "autocast"])
def test_checkpoint_casts_again_in_its_backward(front_end, reentrant):
    """The non-reentrant one ends its second forward by an error, raised in the last call."""
    layer, x = nn.Linear(8, 8), X.clone().requires_grad_()
    report = under(front_end, lambda: checkpoint(layer, x, use_reentrant=reentrant).sum().backward())
    row = Table(report).of("linear")
    assert (row["calls"], row["module"], counts(row)) == (2, "Linear", {TO_LOW: 6})
    assert report.backward_casts() == 3
    assert "CheckpointFunction" not in Table(report).decided()


def test_a_cast_made_before_the_report_is_no_backward_cast_of_it():
    x = X.clone().requires_grad_()
    hmp.convert()
    with hmp.report():
        early = torch.mm(x, W).sum()
    with hmp.report() as report:
        torch.sin(X)
        early.backward()
    assert (report.casts(), report.backward_casts()) == (0, 0)


# What casts() takes.


@pytest.fixture(scope="module")
def asked():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8)) for _ in range(3))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return torch.mm(x, W)

    net = Net()
    hmp.convert()
    with hmp.report() as report:
        net(X)
        X @ W
        X.clone().add_(LOW)
        F.softmax(LOW, -1)
    hmp.revert()
    return report


ASKED = [
    ({}, 3 + 2 + 2 + 1 + 2 + 1 + 1),
    ({"op": "linear"}, 7),
    ({"op": "F.linear"}, 7),
    ({"op": "aten::linear"}, 7),
    ({"op": "matmul"}, 2),
    ({"op": "__matmul__"}, 2),
    ({"op": "Tensor.matmul"}, 2),
    ({"op": "mm"}, 1),
    ({"op": "mm.default"}, 1),
    ({"op": "torch.mm"}, 1),
    ({"op": "add_"}, 1),
    ({"op": "iadd"}, 1),
    ({"to": "bfloat16"}, 10),
    ({"to": torch.bfloat16}, 10),
    ({"to": "torch.float32"}, 2),
    ({"to": torch.float16}, 0),
    ({"op": "linear", "to": "float32"}, 0),
    ({"module": "Net"}, 8),
    ({"module": "layers"}, 7),
    ({"module": "layers.0"}, 3),
    ({"module": "Net: layers.0.0"}, 3),
    ({"module": "layers.*"}, 7),
    ({"module": "layers.*.0"}, 7),
    ({"module": "*.0"}, 3),
    ({"module": "*"}, 7),
    ({"module": "Net: *"}, 7),
    ({"module": ""}, 4),
    ({"op": "linear", "to": "bfloat16", "module": "layers.1"}, 2),
]


@pytest.mark.parametrize(
    "question", [{"op": "conv2d"}, {"module": "layer"}, {"module": "layers.0.1"}, {"module": "Other: layers"}], ids=str
)
def test_what_no_call_had_is_no_zero(asked, question):
    with pytest.raises(ValueError, match=r"'conv2d' was not called|no op ran in a module"):
        asked.casts(**question)


@pytest.mark.parametrize(("question", "count"), ASKED, ids=[", ".join(f"{k}={v}" for k, v in q.items()) or "all" for q, _ in ASKED])  # fmt: skip
def test_casts_are_asked_by_op_dtype_and_module(asked, question, count):
    assert asked.casts(**question) == count
    assert asked.cache_hits(**question) == asked.backward_casts(**question) == 0


REFUSED = [
    ({"op": "linaer"}, ValueError, "'linaer' is not an op of torch"),
    ({"op": ""}, ValueError, "'' is not an op of torch"),
    ({"op": torch.mm}, TypeError, "op must be the name of an op"),
    ({"op": ["mm"]}, TypeError, "op must be the name of an op"),
    ({"to": "fp8"}, ValueError, "float16, bfloat16 or float32.*'fp8'"),
    ({"to": torch.float64}, ValueError, "torch.float64"),
    ({"to": int}, ValueError, "class 'int'"),
    ({"module": 3}, TypeError, "module must be a path.*not 3"),
]


@pytest.mark.parametrize(
    ("question", "error", "message"), REFUSED, ids=[str(q).partition(" at 0x")[0] for q, *_ in REFUSED]
)
@pytest.mark.parametrize("method", ["casts", "cache_hits", "backward_casts"])
def test_what_is_no_question_is_refused(asked, method, question, error, message):
    with pytest.raises(error, match=message):
        getattr(asked, method)(**question)


# Ops that a conversion missed.

GELU = F.gelu
TABLE, LIST, DEEP = {"gelu": GELU}, [None, GELU], {"a": {"b": [GELU]}}
PARTIAL = functools.partial(GELU, approximate="tanh")


class Holder:
    def __init__(self):
        self.act = GELU


HOLDER = Holder()


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = GELU

    def forward(self, x):
        return self.act(x)


MODULE = Module()


def default(x, act=GELU):
    return act(x)


def make_closure(act):
    def call(x):
        return act(x)

    return call


CLOSURE = make_closure(GELU)
NAME = __name__
HELD = {
    "name": (lambda: GELU(X), f"{NAME}.GELU"),
    "dict": (lambda: TABLE["gelu"](X), f"{NAME}.TABLE['gelu']"),
    "list": (lambda: LIST[1](X), f"{NAME}.LIST[1]"),
    "deep": (lambda: DEEP["a"]["b"][0](X), f"{NAME}.DEEP['a']['b'][0]"),
    "attribute": (lambda: HOLDER.act(X), "Holder.act"),
    "module": (lambda: MODULE(X), "Module.act"),
    "default argument": (lambda: default(X), f"a default argument of {NAME}.default"),
    "closure": (lambda: CLOSURE(X), f"a closure of {NAME}.make_closure.<locals>.call"),
    "partial": (lambda: PARTIAL(X), f"{NAME}.PARTIAL (a functools.partial)"),
}


@pytest.mark.parametrize("case", HELD)
def test_an_op_that_was_taken_before_convert_is_missed_and_its_holder_found(case, monkeypatch):
    from habana_mp._report.findings import holders

    gc.unfreeze()  # holders are found among what the garbage collector knows
    monkeypatch.setattr(holders, "_MOST", 1000)  # there are many here
    call, holder = HELD[case]
    hmp.convert(policy=hmp.Policy.load("hmp").with_edits("+gelu:lower"))
    with hmp.report() as report:
        call()
        call()
    [missed] = report.to_dict()["missed"]
    assert (missed["op"], missed["calls"], missed["rule"]) == ("gelu", 2, "lower: gelu, hmp+edits")
    assert holder in missed["held_by"]
    assert missed["module"] == ("Module" if case == "module" else "")
    assert HERE in missed["source"]
    assert "gelu runs without casts" in report.advice[0].text


def test_what_was_taken_from_torch_is_found_in_its_module():
    name = f"{__name__}_taken"
    taken = type(sys)(name)
    taken.__spec__ = None
    exec("from torch import mm\ndef call(x, w): return mm(x, w)", taken.__dict__)
    sys.modules[name] = taken
    try:
        report = under("convert", lambda: taken.call(X, W))
    finally:
        del sys.modules[name]
    [missed] = report.to_dict()["missed"]
    assert (missed["op"], missed["calls"], missed["rule"]) == ("mm", 1, "lower: mm, lists/hmp/lower.txt:24")
    assert f"{name}.mm" in missed["held_by"]


def test_an_activation_of_transformers_holds_the_plain_op():
    activations = pytest.importorskip("transformers.activations")
    act = activations.ACT2FN["gelu"]
    hmp.convert(policy=hmp.Policy.load("hmp").with_edits("+gelu:lower"))
    with hmp.report() as report:
        act(X)
    [missed] = report.to_dict()["missed"]
    assert missed["module"] == "GELUActivation"
    assert missed["op"] == "gelu"


def test_a_call_in_the_dtype_that_the_rule_wants_is_not_missed():
    hmp.convert(policy=hmp.Policy.load("hmp").with_edits("+gelu:lower"))
    with hmp.report() as report:
        GELU(LOW)
    assert (Table(report).of("gelu")["decision"], report.to_dict()["missed"]) == ("left alone", [])


# Listed ops never seen.


def test_listed_ops_never_seen_are_named_with_their_line():
    report = under("convert", lambda: (torch.mm(X, W), X + X))
    entries = report.to_dict()["never_seen"]
    names = [entry["op"] for entry in entries]
    policy = hmp.Policy.load("hmp")
    assert names == [name for listed in policy.lists.values() for name in listed if name not in ("mm", "add")]
    assert {"op": "softmax", "list": "fp32", "rule": "fp32: softmax, lists/hmp/fp32.txt:16"} in entries


def test_never_seen_tells_a_name_once_under_both_front_ends():
    hmp.convert()
    with hmp.report() as report, hmp.autocast("cpu", policy=hmp.Policy.load("hmp")):
        torch.mm(X, W)
        torch.addmm(X, X, W)
    rules = [entry["rule"] for entry in report.to_dict()["never_seen"]]
    assert len(rules) == len(set(rules))


# JSON, copies, differences.


def test_json_is_read_back_as_it_was(asked, tmp_path):
    text = asked.to_json(tmp_path / "report.json")
    again = type(asked).load(tmp_path / "report.json")
    assert json.loads(text) == again.to_dict() == asked.to_dict()
    assert (again.casts("linear"), repr(again), again.advice) == (7, repr(asked), asked.advice)
    with pytest.raises(RuntimeError, match="for one with block"):
        again.__enter__()


WRONG = {
    "empty": (b"", "not a report: Expecting value"),
    "not text": (b"\xff\xfe", "'utf-8' codec"),
    "other": (b"[]", "format must be 'habana_mp.report'"),
    "other dict": (b'{"format": "x"}', "format must be 'habana_mp.report'"),
    "no version": (b'{"format": "habana_mp.report"}', "version None; this habana_mp reads version 1"),
    "newer": (b'{"format": "habana_mp.report", "version": 2}', "version 2; this habana_mp reads version 1"),
    "in part": (b'{"format": "habana_mp.report", "version": 1, "casts": 3}', "Object missing required field `seconds`"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_file_that_holds_no_report_is_refused(case, asked, tmp_path):
    content, message = WRONG[case]
    path = tmp_path / "wrong.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        type(asked).load(path)
    assert str(path) in str(error.value)


def test_a_file_that_is_not_there_is_an_os_error(asked, tmp_path):
    with pytest.raises(FileNotFoundError):
        type(asked).load(tmp_path / "none.json")


def test_the_difference_names_what_changed():
    first = under("convert", lambda: (torch.mm(X, W), F.softmax(LOW, -1)))
    second = under("convert", lambda: (torch.mm(X, W), torch.mm(X, W), X @ W))
    assert first.diff(second).changes == (
        ("matmul", "float32", "bfloat16", 0, 2),
        ("mm", "float32", "bfloat16", 2, 4),
        ("softmax", "bfloat16", "float32", 1, 0),
    )
    assert str(first.diff(second)).splitlines()[2].split() == ["mm", "float32", "->", "bfloat16", "2", "4", "+2"]
    assert not first.diff(first)
    assert str(first.diff(first)) == "no difference: the same casts"
    with pytest.raises(TypeError, match=r"another report, not \{\}"):
        first.diff({})


def test_sums_are_those_of_the_rows(asked):
    values = asked.to_dict()
    casts = [cast for row in values["rows"] for cast in row["casts"]]
    assert values["casts"] == sum(cast["count"] for cast in casts) == asked.casts()
    assert values["cast_bytes"] == sum(cast["bytes"] + cast["backward"]["bytes"] for cast in casts)
    assert values["op_seconds"] == pytest.approx(sum(row["seconds"] for row in values["rows"]))
    assert values["op_seconds"] <= values["seconds"]
    assert len(values["timeline"]["events"]) == values["casts"]
    assert all(values["rows"][event[2]]["casts"] for event in values["timeline"]["events"])
    assert inspect.isdatadescriptor(type(asked).advice)
    assert len(asked.advice) <= 5
