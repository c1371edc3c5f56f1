"""What an edit would change: casts and errors, simulated on what a report with values has recorded, against doing it."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp
from habana_mp._report.edits.simulated import Simulation
from habana_mp._report.errors.objective import Objective, together
from habana_mp._report.form import report_of
from tests.report.edits.net import WIDE, Net, Smooth, no_grad, recorded, wide_run


def effect(report, op, dtype, module=None):
    data = report_of(report.to_dict())
    listed = [i for i, row in enumerate(data.rows) if row.op == op and (module is None or row.module.endswith(module))]
    return Simulation(data).effect(dict.fromkeys(listed, dtype))


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


def test_the_casts_of_a_report_are_those_of_its_edges():
    report = recorded("hmp").to_dict()
    simulation = Simulation(report_of(report))
    for number, row in enumerate(report["rows"]):
        assert simulation._casts(number, {})[0] == sum(cast["count"] for cast in row["casts"]), row["op"]


def test_edges_are_kept_in_files_and_merged(tmp_path):
    report = recorded("hmp")
    report.to_json(tmp_path / "r.json")
    assert hmp.CastReport.load(tmp_path / "r.json").edits() == report.edits()
    both = hmp.CastReport.merged([report, report])
    assert sum(edge[3] for edge in both.to_dict()["edges"]) == 2 * sum(edge[3] for edge in report.to_dict()["edges"])
    assert effect(both, "gelu", "float32").casts == 2 * effect(report, "gelu", "float32").casts


def test_an_op_whose_name_no_list_can_have(tmp_path):
    """A file may have any text, also half of a surrogate pair."""
    values = recorded("hmp").to_dict()
    for row in values["rows"]:
        row["op"] += "\ud800"
    (tmp_path / "r.json").write_text(json.dumps(values))
    report = hmp.CastReport.load(tmp_path / "r.json")
    assert report.presets()
    assert report.to_html()


def test_an_edge_to_no_row_is_refused(tmp_path):
    values = recorded("hmp").to_dict()
    values["edges"][3][1] = 9999
    (tmp_path / "r.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match=r"edges must have numbers of \d+ rows, not 9999"):
        hmp.CastReport.load(tmp_path / "r.json")


@pytest.mark.parametrize("start", ["hmp", "torch-cpu"])
@pytest.mark.parametrize("preset", ["balanced", "hmp", "torch-cpu", "hpu-autocast"])
def test_the_error_under_a_preset_is_foretold(start, preset):
    torch.manual_seed(0)
    net, x = Smooth(), torch.randn(256, 16)
    with hmp.report(values=True) as report:
        report.project(wide_run(net, x, start), k=64)
    with torch.no_grad():
        exact, found = (flat([wide_run(net, x, each)]) for each in (WIDE, preset))
    assert report.presets()[preset] == pytest.approx(off(found, exact), rel=0.35)
    assert list(report.presets().values()) == sorted(report.presets().values())
    assert f"{preset} {report.presets()[preset]:.2g}" in " ".join(str(report).split())


def test_an_op_that_is_in_no_list_any_more_follows_its_inputs():
    torch.manual_seed(0)
    x, y = torch.rand(64, 16, requires_grad=True), torch.rand(64, 16)
    with hmp.report(values=True) as report:
        with hmp.autocast("cpu", policy=hmp.Policy.from_ops(lower=["mul"])):
            out = torch.mul(x, y)
        report.project(out, k=8)
    data = report_of(report.to_dict())
    effect = Simulation(data).under(hmp.Policy.from_ops(lower=["mm"]))
    assert Objective(data).error() > 0
    assert together(Objective(data).errors(effect.left, effect.low)) == 0
    assert effect.casts == -2


def test_presets_without_a_backward_pass_are_refused():
    with hmp.autocast("cpu", policy="hmp"), hmp.report(values=True) as report:
        no_grad()
    with pytest.raises(RuntimeError, match=r"^no backward pass was seen"):
        report.presets()


def off(numbers, exact):
    return ((numbers - exact).norm() / exact.norm()).item()


def flat(tensors):
    return torch.cat([each.flatten() for each in tensors]).double()


def gradients(net, x, policy, *, create_graph=False):
    loss = F.cross_entropy(wide_run(net, x, policy), torch.arange(len(x)) % 4)
    return torch.autograd.grad(loss, list(net.parameters()), create_graph=create_graph)


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
    exact, policy = loss(WIDE).item(), hmp.Policy.load("hmp")
    assert report.loss_change() == pytest.approx(loss("hmp").item() - exact, rel=0.1)
    found = [each for each in report.edits() if each.text.endswith(":fp32")]
    assert "+linear:fp32" in [each.text for each in found]  # gelu follows it
    assert found[0].error >= abs(report.loss_change(module="Smooth"))
    assert found[-1].error_after == 0
    assert loss(policy.with_edits(*found)).item() == exact


class Pooled(nn.Module):
    """What its ops round is random, and lost in the mean; what the rounded weight is off by is not."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((16,), 1.003))

    def forward(self, x):
        return torch.sigmoid(torch.mul(x, self.scale)).float().mean(0)


POOLED = hmp.Policy.from_ops(lower=["mul", "sigmoid"], rest="fp32", name="pooled")


def pooled():
    """A net, and outputs of it under a policy."""
    torch.manual_seed(0)
    net, x = Pooled(), torch.rand(4096, 16) + 1

    def run(policy):
        with hmp.autocast("cpu", policy=policy):
            return net(x)

    return run


@pytest.mark.parametrize("edits", [["+mul:fp32"], ["+sigmoid:fp32"], ["+mul:fp32", "+sigmoid:fp32"]])
def test_what_rounding_alone_leaves_is_measured(edits):
    run = pooled()
    with hmp.report(values=True) as report:
        report.project(run(POOLED), k=64)
    data = report_of(report.to_dict())
    listed = {i: "float32" for i, row in enumerate(data.rows) for edit in edits if edit[1:].startswith(row.op)}
    effect = Simulation(data).effect(listed)
    (foretold,) = Objective(data).errors(effect.left, effect.low).values()
    with torch.no_grad():
        exact, found = run(WIDE).double(), run(POOLED.with_edits(*edits)).double()
    assert foretold == pytest.approx(off(found, exact), rel=0.5)
    assert foretold < 0.3 * Objective(data).error() or edits == ["+sigmoid:fp32"]


def test_numbers_that_two_ops_round_count_once():
    """The results of one that moves to the low dtype, as the inputs of the other that does, too."""
    torch.manual_seed(0)
    net, x = Smooth(), torch.randn(256, 16)
    chain = hmp.Policy.from_ops(lower=["exp", "mul"], rest="fp32")

    def run(policy):
        with hmp.autocast("cpu", policy=policy):
            return torch.mul(torch.exp(net.a(x)), 1.0)

    with hmp.report(values=True) as report:
        report.project(run(WIDE), k=64)
    data = report_of(report.to_dict())
    effect = Simulation(data).under(chain)
    (foretold,) = Objective(data).errors(effect.left, effect.low).values()
    with torch.no_grad():
        exact, found = run(WIDE).double(), run(chain).double()
    assert foretold == pytest.approx(off(found, exact), rel=0.25)  # of 64 random sums, which are off by 9 % on average


@pytest.mark.parametrize("around", ["report", "region"])
@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16], ids=str)
def test_the_low_dtype_is_that_of_the_policy_of_the_calls(low, around):
    """A report that is opened before the region, as round a whole training, measured float32 ops in bfloat16."""
    policy, net, x = hmp.Policy.load("balanced").with_low_dtype(low), Net(), torch.randn(64, 16)
    region, report = hmp.autocast("cpu", policy=policy), hmp.report(values=True)
    with report if around == "report" else region, region if around == "report" else report:
        report.project(net(x).float())
    assert report.to_dict()["low_dtype"] == str(low).removeprefix("torch.")
    rounding = {torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12}[low]
    assert float(report.local_error("softmax", what_if=True)) == pytest.approx(rounding, rel=0.5)
    (now,) = report.errors().values()
    assert report.presets()["balanced" if low is torch.bfloat16 else "torch-cuda"] == pytest.approx(now, rel=0.5)


class Residual(nn.Module):
    """Between its products the numbers are added up in place, and cut off in place or not."""

    def __init__(self, in_place):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4)).bfloat16().float()  # they round no weight
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(4))
        self.relu = nn.ReLU(in_place)

    def forward(self, x):
        x = x @ torch.eye(32)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            y = norm(layer(x))
            y += x
            x = self.relu(y)
        return x


PRODUCTS = hmp.Policy.from_ops(lower=["linear", "matmul"], rest="fp32", name="products")


@pytest.mark.parametrize("in_place", [False, True], ids=["relu", "relu in place"])
def test_what_ops_hand_on_as_it_is_is_rounded_behind_them(in_place):
    """The products round what a norm made, behind a relu or an addition in place that rounded nothing themselves."""
    torch.manual_seed(0)
    net, x = Residual(in_place), torch.randn(256, 32)
    with hmp.report(values=True) as report:
        report.project(wide_run(net, x, "hmp"), k=64)
    with torch.no_grad():
        exact, found = (flat([wide_run(net, x, each)]) for each in (WIDE, PRODUCTS))
    data = report_of(report.to_dict())
    effect = Simulation(data).under(PRODUCTS)
    (foretold,) = Objective(data).errors(effect.left, effect.low).values()
    assert foretold == pytest.approx(off(found, exact), rel=0.15)
    adding = [row.op for row in data.rows].index("add_" if "add_" in [row.op for row in data.rows] else "__iadd__")
    assert adding in {edge.maker for edge in data.edges}


def test_an_edit_moves_calls_that_had_nothing_to_measure():
    """The second dropout is given low numbers, and rounds nothing until what is before it is in float32."""
    torch.manual_seed(0)
    policy = hmp.Policy.from_ops(lower=["linear", "dropout"], rest="first_input")
    net, x = nn.Sequential(nn.Dropout(), nn.Linear(16, 16), nn.Dropout(), nn.GELU()).eval(), torch.randn(256, 16)

    def run(policy):
        with hmp.autocast("cpu", policy=policy):
            return net(x).float()

    with hmp.report(values=True) as report:
        report.project(run(policy), k=64)
    edits = report.edits()
    assert {each.text for each in edits} >= {"+linear:fp32", "+dropout:fp32"}
    assert edits[-1].error_after == 0
    with torch.no_grad():
        assert torch.equal(run(policy.with_edits(*edits)), run(WIDE))


@pytest.mark.parametrize("steps", [False, True], ids=["weights stay", "optimizer"])
def test_an_edit_saves_no_more_time_than_there_was(steps) -> None:
    """Where the cache has the casts of weights, those of their gradients were priced as if they were all casts: "saves 1,768 % of a step"."""
    torch.manual_seed(0)
    model, x = (
        torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.LayerNorm(512), torch.nn.Linear(512, 256)),
        torch.randn(2, 256),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> None:
        with hmp.autocast("cpu", policy="torch-cpu"):
            out = model(x)
        out.float().square().mean().backward()
        if steps:
            optimizer.step()

    step()
    with hmp.report(values=True) as report:
        for _ in range(4):
            step()
            report.step()
    cached = sum(cast["cached"] for row in report.to_dict()["rows"] for cast in row["casts"])
    assert cached == (0 if steps else 8)
    (edit,) = (each for each in report.edits() if each.text == "+linear:fp32")
    assert edit.seconds > -sum(report.to_dict()["steps"])
