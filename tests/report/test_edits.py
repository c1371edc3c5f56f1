"""What an edit would change: casts and time, simulated on what a report with values has recorded, against doing it."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp
from habana_mp._report.findings.edits import Edit, _added, _in_groups, edits, edits_text
from habana_mp._report.findings.simulated import Simulation
from habana_mp._report.form import report_of


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b, self.c = nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.gelu(self.norm(self.a(x)))
        y = y + torch.exp(self.b(y)) * y
        return torch.softmax(self.c(F.relu(y)), -1)


def recorded(policy):
    torch.manual_seed(0)
    net = Net()
    if not isinstance(policy, str) and any(policy.limited.values()):
        hmp.set_policies(net, policy)
    with hmp.autocast("cpu", policy=policy), hmp.report(values=True) as report:
        out = net(torch.randn(8, 16))
        out.sum().backward()
    return report


def effect(report, op, dtype, module=None):
    rows = report.to_dict()["rows"]
    places = {(op, row["module"]) for row in rows if module is None or row["module"].endswith(module)}
    return Simulation(report_of(report.to_dict())).effect(places, dtype)


@pytest.mark.parametrize("policy", ["hmp", "torch-cpu", "torch-cuda"])
@pytest.mark.parametrize(
    ("op", "listed"),
    [
        (op, listed)
        for listed in ("fp32", "lower")
        for op in ("linear", "layer_norm", "gelu", "exp", "mul", "add", "relu", "softmax")
    ],
)
def test_casts_of_an_edit_are_foretold(policy, op, listed):
    before = recorded(policy)
    dtype = "float32" if listed == "fp32" else before.to_dict()["low_dtype"]
    after = recorded(hmp.Policy.load(policy).with_edits(f"+{op}:{listed}"))
    assert effect(before, op, dtype).casts == after.casts() - before.casts()


def test_a_norm_that_is_the_first_op_casts_its_input_alone_d14():
    with hmp.autocast("cpu", policy="hmp"), hmp.report(values=True) as report:
        nn.LayerNorm(16)(torch.randn(8, 16)).sum().backward()
    assert report.casts("layer_norm") == 1
    assert effect(report, "layer_norm", "float32").casts == -1


@pytest.mark.parametrize("module", ["a", "b", "c"])
@pytest.mark.parametrize("listed", ["fp32", "lower"])
def test_casts_of_an_edit_in_one_module_are_foretold(module, listed):
    policy = hmp.Policy.load("hmp").with_edits(*(["+linear:fp32"] if listed == "lower" else []))
    dtype = "float32" if listed == "fp32" else "bfloat16"
    before = recorded(policy)
    after = recorded(policy.with_edits(f"+linear in {module}:{listed}"))
    assert effect(before, "linear", dtype, f": {module}").casts == after.casts() - before.casts()


class Deep(nn.Module):
    """The last layer is nearest to the loss, the first block has large numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16)) for _ in range(3)])
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def test_edits_of_an_op_in_some_modules():
    torch.manual_seed(0)
    net, x = Deep(), torch.randn(64, 16)
    with hmp.autocast("cpu", policy="hmp"), hmp.report(values=True) as report:
        F.cross_entropy(net(x).float(), torch.arange(64) % 4).backward()
    found = report.edits(per="module")
    texts = [edit.text for edit in found]
    assert set(texts) == {"+linear in head:fp32", "+linear in blocks.*.*:fp32"}
    for edit in found:
        assert edit.share == pytest.approx(report.error_share(edit.op, edit.text[1:-5].partition(" in ")[2]), rel=1e-6)
    policy = hmp.Policy.load("hmp").with_edits(*texts)
    hmp.set_policies(net, policy)
    with hmp.autocast("cpu", policy=policy), hmp.report() as after:
        net(x)
    assert after.casts("linear", to="bfloat16") == 0 < after.casts("layer_norm", to="bfloat16")
    with pytest.raises(ValueError, match='per must be "op" or "module"'):
        report.edits(per="layer")


def test_the_casts_of_a_report_are_those_of_its_edges():
    report = recorded("hmp").to_dict()
    simulation = Simulation(report_of(report))
    for number, row in enumerate(report["rows"]):
        assert simulation._casts(number, {})[0] == sum(cast["count"] for cast in row["casts"]), row["op"]


def test_an_edit_says_what_it_costs():
    edit = recorded("hmp").edits()[0]
    assert edit.text.endswith(":fp32")
    assert f"{abs(edit.more_casts):,} cast" in edit.why or "no cast more" in edit.why
    assert "of the error of the loss" in edit.why
    assert "of the time" in edit.why


def test_an_edit_to_the_low_dtype_cancels_nothing():
    """More error is what it is expected to leave."""
    values = recorded(hmp.Policy.load("hmp").with_edits("+relu:fp32")).to_dict()
    for row in values["rows"]:
        if "values" in row:
            row["values"] |= {"change": 1.0 if row["op"] == "linear" else 0.0, "change_low": 0.0}
        if row["op"] == "relu":  # slow in float32
            row["seconds"] = 1.0
            row["values"] |= {"change_low": 0.005, "ran_seconds": 1.0, "other_seconds": 0.1}
    (edit,) = (each for each in edits(report_of(values)) if each.text == "+relu:lower")
    assert edit.error_after > edit.error
    assert "cancel" not in edit.why


def test_edges_are_kept_in_files_and_merged(tmp_path):
    report = recorded("hmp")
    report.to_json(tmp_path / "r.json")
    assert hmp.CastReport.load(tmp_path / "r.json").edits() == report.edits()
    both = hmp.CastReport.merged([report, report])
    assert sum(edge[3] for edge in both.to_dict()["edges"]) == 2 * sum(edge[3] for edge in report.to_dict()["edges"])
    assert effect(both, "gelu", "float32").casts == 2 * effect(report, "gelu", "float32").casts


def test_an_edge_to_no_row_is_refused(tmp_path):
    values = recorded("hmp").to_dict()
    values["edges"][3][1] = 9999
    (tmp_path / "r.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match=r"edges must have numbers of \d+ rows, not 9999"):
        hmp.CastReport.load(tmp_path / "r.json")


def no_grad():
    with torch.no_grad():
        Net()(torch.randn(8, 16))


def spoiled():
    (Net()(torch.randn(8, 16)).sum() * math.nan).backward()


def fine():
    """In one dtype throughout: nothing rounds."""
    Net()(torch.randn(8, 16)).sum().backward()


@pytest.mark.parametrize(
    ("policy", "step", "text", "evidence"),
    [
        ("torch-cpu", no_grad, "no backward pass was seen, ", "or report.project(outputs), with gradients on"),
        (
            "torch-cpu",
            spoiled,
            "the loss or its gradients are not finite or are zero, ",
            "run habana-mp find-nonfinite, ",
        ),
        (None, fine, "no policy was in force, ", "call hmp.convert, or enter hmp.autocast, "),
        (hmp.Policy.from_ops(fp32=["linear"]), fine, "no edit of the lists is worth it", "no op makes 5 % of "),
    ],
)
def test_why_there_is_no_edit_is_said(policy, step, text, evidence):
    region = nullcontext() if policy is None else hmp.autocast("cpu", policy=policy)
    with region, hmp.report(values=True) as report:
        step()
    if text.startswith("no edit"):
        assert report.edits() == ()
    else:
        with pytest.raises(RuntimeError, match=f"^{text}"):
            report.edits()
    found = report.advice[0]
    assert found.text.startswith(text)
    assert evidence in found.evidence


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (0.005, "would raise the error of the loss (1 -> 1.005)"),
        (-0.01, "would reduce the error of the loss (1 -> 0.99)"),
        (1e-6, "would leave the error of the loss at 1"),
    ],
)
def test_what_the_low_dtype_does_to_the_error(change, said):
    assert _added(abs(change), "the loss", 1.0, 1.0 + change) == said


def edit_of(text, error, after):
    op, _, title = text[1:].partition(":")
    return Edit(text, op, 0.1, 0, "", 0, 0.0, error, after, "why", _list=title)


def test_a_file_of_edits_has_groups():
    found = [
        edit_of("+sum:fp32", None, None),
        edit_of("+mul:fp32", 0.012, 0.017),
        edit_of("+exp:fp32", 0.012, 0.01),
        edit_of("+relu:lower", 0.012, 0.013),
    ]
    assert _in_groups(found) == (
        "# for accuracy\n+sum:fp32  # why\n+exp:fp32  # why\n\n# for speed\n+relu:lower  # why\n\n"
        "# left out: errors of other ops cancel these now, so the error would become larger\n# +mul:fp32  # why\n"
    )


def test_an_edit_by_which_the_error_of_the_step_would_become_larger_comes_after_the_others():
    """Errors of 1, of -0.9 and of 0.2 leave 0.3, and without the second more. On other data they may add up."""
    values = recorded("hmp").to_dict()
    made = {"add": 1.0, "linear": -0.9, "mul": 0.2}
    for row in values["rows"]:
        if "values" in row:
            row["values"] |= {"change": made.pop(row["op"], 0.0), "change_low": 0.0}
    assert not made
    better, worse = (edit for edit in edits(report_of(values)) if edit.text.endswith(":fp32"))
    assert (better.op, worse.op) == ("mul", "linear")
    assert better.share < worse.share
    assert better.error_after < better.error == worse.error < worse.error_after
    assert f"-> {worse.error_after:.2g} in this step, where errors of other ops cancel it)" in worse.why
    assert "cancel" not in better.why
    lines = edits_text(report_of(values)).splitlines()
    assert f"# {worse}".replace(": makes", "  # makes") in lines
    assert str(better).replace(": makes", "  # makes") in lines


def wide_run(net, x, policy):
    with hmp.autocast("cpu", policy=policy):
        return net(x).float()


WIDE = hmp.Policy.from_ops(lower=[], rest="fp32", name="wide")


def off(numbers, exact):
    return ((numbers - exact).norm() / exact.norm()).item()


def flat(tensors):
    return torch.cat([each.flatten() for each in tensors]).double()


def gradients(net, x, policy, *, create_graph=False):
    loss = F.cross_entropy(wide_run(net, x, policy), torch.arange(len(x)) % 4)
    return torch.autograd.grad(loss, list(net.parameters()), create_graph=create_graph)


class Smooth(Net):
    """Without the kink of relu, which no derivative sees."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(F.gelu(self.b(self.norm(F.gelu(self.a(x))))))


@pytest.mark.parametrize("kind", ["outputs", "gradients"])
def test_an_edit_foretells_the_error_that_is_left(kind):
    torch.manual_seed(0)
    net, x, policy = Smooth(), torch.randn(64, 16), hmp.Policy.load("hmp").with_edits("+gelu:fp32")
    run = wide_run if kind == "outputs" else gradients
    with hmp.report(values=True) as report:
        report.project(run(net, x, policy, **({"create_graph": True} if kind == "gradients" else {})), k=64)
    numbers = lambda policy: flat(run(net, x, policy)).detach()  # noqa: E731
    exact, edit = numbers(WIDE), report.edits()[0]
    assert edit.text == "+linear:fp32"
    assert edit.error == pytest.approx(off(numbers(policy), exact), rel=0.25)
    assert edit.error_after == pytest.approx(off(numbers(policy.with_edits(edit)), exact), rel=0.4)
    assert f"of the error of the outputs (estimated: {edit.error:.2g} -> {edit.error_after:.2g})" in edit.why


@pytest.mark.parametrize("seed", range(3))
def test_an_edit_foretells_the_loss(seed):
    torch.manual_seed(seed)
    net, x = Smooth(), torch.randn(64, 16)

    def loss(policy):
        with hmp.autocast("cpu", policy=policy):
            return net(x).square().mean().float()

    with hmp.report(values=True) as report:
        loss("hmp").backward()
    edit = next(each for each in report.edits() if each.op == "mean")
    exact, policy = loss(WIDE).item(), hmp.Policy.load("hmp")
    off = abs(loss("hmp").item() - exact)
    assert edit.error == pytest.approx(off, rel=0.1)
    assert edit.error_after == pytest.approx(abs(loss(policy.with_edits(edit.text)).item() - exact), abs=0.1 * off)


VIEWS = {
    "none": lambda x: x,
    "view": lambda x: x.view(4, 16, 16),
    "index": lambda x: x[:, None],
    "transpose": lambda x: x.mT,
    "reshape of it": lambda x: x.mT.reshape(64, 16),
    "two": lambda x: x[:, None].transpose(0, 1),
    "a copy": lambda x: x.index_select(0, torch.arange(64)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_an_edit_is_not_advised_where_a_view_of_the_results_is_rounded_again(name):
    """Positions are sums that rotary embeddings give to a product through x[:, None]."""
    torch.manual_seed(0)
    x, weight = torch.rand(64, 16), torch.rand(16, 16, requires_grad=True)
    last = torch.rand(VIEWS[name](x).shape[-1], 8)
    policy = hmp.Policy.from_ops(lower=["mm", "cumsum", "matmul"], name="positions")

    def run(policy):
        with hmp.autocast("cpu", policy=policy):
            return torch.matmul(VIEWS[name](torch.cumsum(torch.mm(x, weight), 0)), last).float()

    with hmp.report(values=True) as report:
        before = run(policy)
        before.sin().sum().backward()
    assert report.error_share("cumsum") > 0.05
    assert "+cumsum:fp32" not in [edit.text for edit in report.edits()]
    assert run(policy.with_edits("+cumsum:fp32")).equal(before)


class Two(nn.Module):
    def __init__(self, view):
        super().__init__()
        self.a, self.b, self.view = nn.Linear(16, 16), nn.Linear(16, 8), view

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.view(self.a(x)))


@pytest.mark.parametrize("name", ["none", "index"])
def test_ops_of_one_edit_do_not_round_the_results_of_each_other(name):
    for seed in range(4):
        torch.manual_seed(seed)
        net, x = Two(VIEWS[name]), torch.rand(64, 16)
        with hmp.autocast("cpu", policy=hmp.Policy.from_ops(lower=["linear"])), hmp.report(values=True) as report:
            net(x).float().sin().sum().backward()
        # Edits to the low dtype depend on the times of the run: sin has one where it was faster in bfloat16.
        (edit,) = (each for each in report.edits() if each.text.endswith(":fp32"))
        assert (edit.text, edit.error_after) == ("+linear:fp32", 0)


def test_an_edit_is_advised_where_a_view_of_the_results_stays():
    torch.manual_seed(0)
    x, weight = torch.rand(64, 16), torch.rand(16, 16, requires_grad=True)
    with hmp.autocast("cpu", policy=hmp.Policy.from_ops(lower=["mm", "cumsum"])), hmp.report(values=True) as report:
        torch.cumsum(torch.mm(x, weight), 0)[:, None].float().sin().sum().backward()
    assert "+cumsum:fp32" in [edit.text for edit in report.edits()]


@pytest.mark.parametrize("op", ["gelu", "layer_norm"])
def test_an_edit_whose_results_are_rounded_again_is_not_advised(op):
    """It is given bfloat16, and the linear layer behind it casts what it makes to bfloat16: in float32 it makes the same."""
    torch.manual_seed(0)
    net, x = Smooth(), torch.randn(64, 16)
    with hmp.report(values=True) as report:
        before = wide_run(net, x, "hmp")
        before.square().mean().backward()
    assert report.error_share(op) > 0.05
    assert f"+{op}:fp32" not in [edit.text for edit in report.edits()]
    assert wide_run(net, x, hmp.Policy.load("hmp").with_edits(f"+{op}:fp32")).equal(before)
