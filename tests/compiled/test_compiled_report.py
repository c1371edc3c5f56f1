"""Instruments round compiled code: a report has the casts of its graphs, and no table is empty without a reason."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from habana_mp import hmp

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own

LISTS = {"lower": ["mul", "linear"], "fp32": ["softmax"]}
EXACT = hmp.Policy.from_ops(**LISTS, name="mine")
FUSED = hmp.Policy.from_ops(**LISTS, compiled="fused", name="mine")
WHY = 'compiled code ran, and a report does not see what it rounds: run the step under torch.compiler.set_stance("force_eager")'


def function(x, y):
    return torch.mul(torch.softmax(torch.mul(x, y), -1), y)


def given() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(8, 16, requires_grad=True), torch.randn(8, 16)


def step(run, x, y) -> None:
    result = run(x, y)
    result.backward(torch.ones_like(result))


def in_force(front_end: str, policy: hmp.Policy):
    return (
        hmp.autocast("cpu", policy=policy)
        if front_end == "autocast"
        else hmp.convert(policy=policy) and torch.enable_grad()
    )


@pytest.mark.parametrize("front_end", ["convert", "autocast"])
def test_the_casts_of_a_graph(front_end: str) -> None:
    compiled, (x, y) = torch.compile(function, fullgraph=True), given()
    with torch._inductor.utils.fresh_cache(), in_force(front_end, EXACT), hmp.report() as report:
        for _ in range(3):
            step(compiled, x, y)
    (graph,) = report.to_dict()["compiled"]
    assert (graph["graph"], graph["rounds"], graph["calls"], graph["unrounded"]) == ("0/0", "exact", 3, 0)
    forward = {(each["op"], each["from"], each["to"]): each for each in graph["casts"] if not each["backward"]}
    assert {key: each["count"] for key, each in forward.items()} == {
        ("mul", "float32", "bfloat16"): 3,
        ("_softmax", "bfloat16", "float32"): 1,
    }
    assert forward["mul", "float32", "bfloat16"]["rule"] == "lower: mul, mine"
    assert sum(each["count"] for each in graph["casts"] if each["backward"]) > 0
    assert "graph 0/0, exact" in str(report)
    assert report.advice[0].text.startswith("compiled code ran")


CONSTANTS = {
    "full": lambda x: torch.mul(x, torch.full((8, 16), 2.0)),
    "computed": lambda x: torch.mul(x, torch.tensor(2.0).sqrt()),
    "matrix": lambda x: F.linear(x, torch.ones(16, 16)),
}


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
@pytest.mark.parametrize("constant", CONSTANTS)
def test_a_constant_in_the_graph(constant: str, grad: bool) -> None:
    """Inductor casts it while it compiles, and leaves a node without inputs: that stopped the compilation with an IndexError."""
    compiled, (x, _) = torch.compile(CONSTANTS[constant], fullgraph=True), given()
    with (
        torch._inductor.utils.fresh_cache(),
        torch.set_grad_enabled(grad),
        hmp.autocast("cpu", policy=EXACT),
        hmp.report() as report,
    ):
        assert torch.equal(compiled(x), CONSTANTS[constant](x))
    (graph,) = report.to_dict()["compiled"]
    casts = [(each["op"], each["count"]) for each in graph["casts"]]
    assert casts == [("mm", 2) if constant == "matrix" else ("mul", 1)]  # Inductor folds no matrix


def test_roundings_that_fused_may_leave_out() -> None:
    compiled = torch.compile(function, fullgraph=True)
    with (
        torch._inductor.utils.fresh_cache(),
        hmp.autocast("cpu", policy=FUSED),
        hmp.report() as report,
        torch.no_grad(),
    ):
        compiled(*given())
    (graph,) = report.to_dict()["compiled"]
    # Two casts of the inputs of each product (y once more for the second), and the result of the first.
    assert (graph["rounds"], graph["unrounded"]) == ("fused", 5)
    assert "5 roundings may be left out" in str(report)


def test_a_graph_of_another_backend() -> None:
    compiled = torch.compile(function, backend="aot_eager")
    with hmp.autocast("cpu", policy=EXACT), hmp.report() as report:
        compiled(*given())
    (graph,) = report.to_dict()["compiled"]
    assert (graph["rounds"], graph["casts"]) == ("unknown", [])
    assert "casts unknown" in str(report)


def test_graphs_round_a_break() -> None:
    def broken(x, y):
        x = torch.mul(x, y)
        torch._dynamo.graph_break()
        return torch.mul(x, y)

    compiled, (_, y) = torch.compile(broken, backend="eager"), given()
    with hmp.report() as report:
        compiled(y, y)
    assert sorted(graph["calls"] for graph in report.to_dict()["compiled"]) == [1, 1]


def test_a_report_with_values_gives_the_reason() -> None:
    compiled, (x, y) = torch.compile(function, backend="aot_eager"), given()
    with hmp.autocast("cpu", policy=EXACT), hmp.report(values=True) as report:
        step(compiled, x, y)
    assert report.advice[0].text.startswith("compiled code ran")
    for ask in (report.edits, report.presets):
        with pytest.raises(RuntimeError) as raised:
            ask()
        assert str(raised.value) == WHY


def test_reports_of_ranks_are_merged() -> None:
    compiled = torch.compile(function, backend="eager")
    reports = []
    for _ in range(2):
        with hmp.report() as report:
            compiled(*given())
        reports.append(report)
    (graph,) = hmp.CastReport.merged(reports).to_dict()["compiled"]
    assert graph["calls"] == 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compare_runs_a_compiled_step_op_by_op(backend: str) -> None:
    x, y = given()
    compiled = torch.compile(function, backend=backend)
    compiled(x, y)
    plain = hmp.compare(lambda: function(x, y), EXACT, None)
    found = hmp.compare(lambda: compiled(x, y), EXACT, None)
    assert [(row.op, row.made) for row in found.rows] == [(row.op, row.made) for row in plain.rows]
    assert [row.op for row in found.rows] == ["mul", "softmax"]


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)).sum()


def wrapped(model: torch.nn.Module) -> torch.nn.Module:
    return torch.compile(model, backend="aot_eager")


def compiled_inside(model: torch.nn.Module) -> torch.nn.Module:
    return torch.nn.Sequential(wrapped(model))


def compiled_in_place(model: torch.nn.Module) -> torch.nn.Module:
    model.compile(backend="aot_eager")
    return model


@pytest.mark.parametrize("compiled", [wrapped, compiled_inside, compiled_in_place])
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "recompiled"])
@pytest.mark.parametrize("instrument", ["report", "values", "find_nonfinite"])
def test_a_module_compiles_inside_an_instrument(compiled, warm, instrument, capfd) -> None:
    """Dynamo compiled the functions that C calls for the names of modules, and raised AssertionError; recompiled for other sizes, torch printed
    errors of the report's callback.
    """
    torch._dynamo.reset()
    hmp.convert(policy="balanced")
    model = compiled(Net())
    if warm:
        model(torch.randn(4, 8)).backward()

    def step() -> None:
        for rows in (5, 6):
            model(torch.randn(rows, 8)).backward()

    if instrument == "find_nonfinite":
        assert not hmp.find_nonfinite(step)
    else:
        with hmp.report(values=instrument == "values") as report:
            step()
        assert report.to_dict()["compiled"]
    assert "Exception" not in capfd.readouterr().err
