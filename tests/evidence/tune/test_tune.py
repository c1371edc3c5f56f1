"""hmp.tune: the lists that it finds keep the budget, have in float32 what needs it, and little else."""

from __future__ import annotations

import contextlib
import json
import warnings
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from planted_faults import ANGLES, LARGE, PLANTED, Model, Waves, X, error_of, wide
from torch import nn

from habana_mp import hmp
from habana_mp._evidence.tune.costs import Costs
from habana_mp._evidence.tune.path import free

BUDGET = 1e-2
FLOAT16 = hmp.Policy.load("hmp").with_low_dtype("float16")


def step_of(*planted: str):
    model = Model(*planted)
    return lambda: model(X)


def tuned(step, budget=BUDGET, **options) -> hmp.Tuned:
    return hmp.tune(step, budget, **{"start": "hmp", "others": "lower", "cost": "numbers", **options})


SETS = [*((name,) for name in PLANTED), ("cos", "sub", "log"), ("exp", "var", "cos"), tuple(PLANTED)]


@pytest.mark.parametrize("gradients", [True, False], ids=["gradients", "no gradients"])
@pytest.mark.parametrize("planted", SETS, ids="+".join)
def test_what_loses_accuracy_is_in_float32_and_nothing_else(planted, gradients):
    model = Model(*planted, gradients=gradients)

    def step():
        return model(X)

    found = tuned(step)
    assert wide(found) == {*planted}, found
    assert {*planted} <= {*found.policy.lists["fp32"]}
    assert {"linear", "gelu", "sigmoid", "tanh"} <= {*found.policy.lists["lower"]}
    assert error_of(step, found.policy) <= BUDGET


@pytest.mark.parametrize("cost", ["numbers", "seconds"])
@pytest.mark.parametrize("budget", [1e-1, 1e-2, 1e-3, 1e-4, 1e-7])
def test_the_budget_is_kept(budget, cost):
    step = step_of(*PLANTED)
    found = tuned(step, budget, cost=cost)
    assert error_of(step, found.policy) == pytest.approx(found.error, abs=1e-9)
    assert found.error <= found.budget == budget


def test_casts_are_timed_on_the_cpu_where_a_build_for_cuda_finds_no_driver(monkeypatch):
    def current_accelerator(check_available=False):
        return None if check_available else torch.device("cuda")

    monkeypatch.setattr(torch.accelerator, "current_accelerator", current_accelerator)
    assert tuned(step_of("cos"), cost="seconds").error <= BUDGET


@pytest.mark.parametrize("options", [{}, {"others": "start"}, {"per": "module"}, {"metric": "gradients"}], ids=str)
def test_the_same_step_gives_the_same_policy(options):
    model = Model("cos", "var")

    def step():
        loss = model(X).square().mean()
        loss.backward()
        return loss

    first, second = (tuned(step, **options) for _ in range(2))
    assert first.policy == second.policy
    assert [point.error for point in first.points] == [point.error for point in second.points]


@pytest.mark.parametrize("check", [False, True], ids=["no check", "check"])
@pytest.mark.parametrize("cost", ["numbers", "seconds"])
@pytest.mark.parametrize("planted", [(), ("cos",), tuple(PLANTED)], ids=["none", "one", "five"])
def test_the_runs_are_counted_and_bounded(planted, cost, check):
    inner, calls = step_of(*planted), []

    def step():
        calls.append(1)
        return inner()

    found = tuned(step, 1e-3, cost=cost, check=step if check else None)
    ops = {part.part.op for part in found.parts}
    assert len(calls) == found.calls
    assert cost == "seconds" or found.calls == found.runs
    assert found.runs <= found.most_runs == len(ops) // 2 + {"numbers": 20, "seconds": 44}[cost]


def test_a_large_budget_has_all_in_the_low_dtype():
    found = tuned(step_of(*PLANTED), 1e9, metric=lambda exact, low: (exact - low).norm())
    assert wide(found) == set()
    assert found.chosen.name == "all low"


def test_float16_keeps_what_overflows_in_float32():
    model = Model()

    def step():
        return model(X) + torch.exp(LARGE / 2) * 1e-8  # up to 2e8; float16 ends at 65504

    found = tuned(step, 1e-2, start=FLOAT16)
    assert found.policy.low_dtype == torch.float16
    assert "exp" in wide(found)
    assert error_of(step, found.policy) <= 1e-2
    assert "in float16: loses numbers (NaN or infinity)" in found.explain("exp")
    json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize("name", ["t", "flatten", "clone"])
def test_what_only_moves_numbers_rounds_them_too(name):
    """The lower list of hmp has t: float32 for the product alone would leave its weights rounded."""
    weight = nn.Parameter(torch.randn(16, 16, generator=torch.Generator().manual_seed(0)))
    moved = {"t": torch.t, "flatten": lambda w: w.flatten(0), "clone": torch.clone}[name]

    def step():
        return torch.mm(X, moved(weight).view(16, 16) if name == "flatten" else moved(weight))

    found = tuned(step, 1e-6, start=hmp.Policy.load("hmp").with_edits(f"+{name}:lower"))
    assert error_of(step, found.policy) <= 1e-6
    assert found.error <= 1e-6


STARTS = {
    "for a dtype": ("+cos@bfloat16:lower", "+sub@bfloat16:lower"),
    "an overload": ("+sub.Tensor:lower", "+cos:promote"),
    "for modules": ("+cos in **:lower", "+linear in first:lower", "+tanh in first:fp32"),
    "nothing": (),
}


@pytest.mark.filterwarnings("ignore:.*names modules that none of the called models has")
@pytest.mark.parametrize("edits", STARTS.values(), ids=STARTS)
@pytest.mark.parametrize("budget", [BUDGET, 1e-6])
def test_what_the_start_says_of_an_op_does_not_win_over_the_search(edits, budget):
    step = step_of("cos", "sub")
    found = tuned(step, budget, start=hmp.Policy.load("hmp").with_edits(*edits))
    assert error_of(step, found.policy) <= budget
    assert found.policy.rule("cos").action == "fp32"
    assert budget < 1e-3 or found.policy.rule("tanh").action == "lower"


def test_other_lists_of_the_start_stay():
    start = hmp.Policy.load("torch-cpu")
    found = tuned(step_of("cos"), start="torch-cpu")
    ops = {part.part.op for part in found.parts}
    for title in ("lower", "fp32", "promote"):
        assert {*start.lists[title]} - ops == {*found.policy.lists[title]} - ops
    assert (found.start, found.policy.rest, found.policy.name) == (start, start.rest, "tuned")


@pytest.mark.parametrize("budget", [0.9, BUDGET, 1e-6])
def test_a_policy_that_was_found_is_found_again_from_itself(budget):
    step = step_of("cos", "sub")
    found = tuned(step, budget)
    again = tuned(step, budget, start=found.policy)
    assert again.policy == found.policy
    assert again.runs <= found.runs


def test_with_others_start_only_float32_is_edited():
    step, start = step_of("cos", "sub"), hmp.Policy.load("hmp").with_edits("+cos:lower", "+sub:lower")
    found = tuned(step, start=start, others="start")
    assert wide(found) == {"cos", "sub"}
    assert found.policy == start.with_edits("+cos:fp32", "+sub:fp32")
    assert error_of(step, found.policy) <= BUDGET


def test_by_default_the_result_is_an_edit_of_balanced():
    found = hmp.tune(step_of("cos", "sub"), 0.5)
    balanced = hmp.Policy.load("balanced")
    assert (found.start, found.points[0].policy, found.points[0].name) == (balanced, balanced, "balanced")
    explicit = hmp.tune(step_of("cos", "sub"), 0.5, start="balanced", others="start", cost="numbers")
    assert explicit.policy == hmp.tune(step_of("cos", "sub"), 0.5, cost="numbers").policy == balanced


@pytest.mark.parametrize(
    ("per", "make"), [("op", lambda: step_of("cos", "sub")), ("module", Waves)], ids=["op", "module"]
)
def test_the_first_edits_of_a_report_run_too(per, make):
    step, start = make(), hmp.Policy.load("balanced").with_edits("+cos:lower", "+sub:lower")
    with hmp.autocast("cpu", policy=start), hmp.report(values=True) as report:
        report.project(step(), k=32)
    first = [edit for edit in report.edits(per=per) if edit._list == "fp32"]
    found = hmp.tune(step, BUDGET, start=start, per=per)
    ran = [point.policy for point in found.points]
    assert first
    for count in (1, 2, 3, 5):
        assert start.with_edits(*first[:count]) in ran
    assert len(ran) == len({*map(str, ran)})
    assert found.error <= BUDGET
    assert found.chosen.seconds <= min(point.seconds for point in found.points if point.timed > 1) + found.noise
    assert found.runs <= found.most_runs


def test_what_no_gradient_comes_to_is_predicted():
    model = Model("cos", gradients=False)
    found = tuned(lambda: model(X), 1e-6)
    assert not any(part.part.hidden for part in found.parts)
    assert found.points[0].name == "all low"
    assert found.points[0].error > 0.5
    assert found.points[0].predicted_error == pytest.approx(found.points[0].error, rel=0.3)


def test_what_is_detached_is_not_predicted():
    """Its error may be any."""
    model = Model("cos")
    angles = model.planted["cos"]
    found = tuned(lambda: torch.cos(angles).detach() * torch.sigmoid(model(X)), 1e-6)
    hidden = {part.name for part in found.parts if part.part.hidden}
    assert hidden
    for point in found.points:
        low = {name for name in hidden if point.policy.rule(name).action != "fp32"}
        assert point.predicted_error is None or not low


def test_modules_have_lines_where_an_op_differs_between_them():
    model = Waves()
    found = tuned(model, 2e-2, per="module")
    limited = {name for names in found.policy.limited.values() for name in names}
    assert {"cos in far"} == {name for name in wide(found) if name.startswith("cos")}
    assert limited
    assert all(name.startswith("cos in ") for name in limited), found.policy
    exact = model().detach()
    hmp.set_policies(model, found.policy)
    with hmp.autocast("cpu", policy=found.policy), hmp.report() as report:
        low = model().detach()
    assert ((low - exact).norm() / exact.norm()).item() == pytest.approx(found.error, rel=1e-5)
    lowered = {row["module"] for row in report.to_dict()["rows"] if row["op"] == "cos" and row["casts"]}
    assert lowered == {"Waves: near", "Waves: middle"}


def test_per_op_an_op_is_the_same_in_all_modules():
    found = tuned(Waves(), 2e-2)
    assert "cos" in wide(found)
    assert not any(found.policy.limited.values())


def test_gradients_have_the_error_of_their_angle():
    model = Model("cos", "var")

    def gradients():
        model.zero_grad()
        model(X).square().mean().backward()
        return torch.cat([p.grad.double().flatten() for p in model.parameters()])

    exact = gradients()
    found = tuned(gradients, 1e-3, metric="gradients")
    with hmp.autocast("cpu", policy=found.policy):
        low = gradients()
    assert found.error <= 1e-3
    assert 1 - F.cosine_similarity(exact, low, 0).item() == pytest.approx(found.error, abs=1e-7)


def test_gradients_that_were_there_do_not_count():
    """Nor are they lost."""
    model = Model("cos")

    def step():
        model(X).square().mean().backward()

    alone = tuned(step, 1e-3, metric="gradients")
    before = [torch.full_like(p, 1e6) for p in model.parameters()]
    for p, gradient in zip(model.parameters(), before, strict=True):
        p.grad = gradient
    again = tuned(step, 1e-3, metric="gradients")
    assert [point.error for point in again.points] == [point.error for point in alone.points]
    assert all(p.grad is gradient for p, gradient in zip(model.parameters(), before, strict=True))
    assert all(gradient.eq(1e6).all() for gradient in before)


@pytest.mark.parametrize(("returns", "predicts"), [("loss", True), ("logits", False)])
def test_errors_of_a_loss_are_predicted_of_the_loss(returns, predicts):
    model = Model()

    def step():
        logits = model(X)
        loss = logits.square().mean()
        loss.backward()
        return loss if returns == "loss" else logits

    assert all(
        (point.predicted_error is not None) == predicts for point in tuned(step, 1e-2).points if point.name != "hmp"
    )


def test_a_function_is_a_metric():
    def largest(exact, low):
        return (exact - low).abs().max()

    step = step_of("cos")
    found = tuned(step, 0.1, metric=largest)
    exact = step()
    with hmp.autocast("cpu", policy=found.policy):
        assert largest(exact, step()).item() == pytest.approx(found.error)
    assert found.error <= 0.1
    assert "cos" in wide(found)


def test_no_number_as_an_error_is_infinite():
    found = tuned(step_of(), metric=lambda exact, low: 0.0 if torch.equal(exact, low) else float("nan"))
    assert found.error == 0
    assert found.points[0].error == float("inf")


@pytest.mark.parametrize(("scale", "above"), [(0.5, False), (400, True)], ids=["alike", "large angles"])
def test_check_is_a_step_that_no_choice_is_made_by(scale, above):
    model = Model()

    def of(angles):
        return lambda: model(X) + torch.cos(angles)

    found = tuned(of(X), check=of(X * scale))
    assert found.policy == tuned(of(X)).policy
    assert found.check_error == pytest.approx(error_of(of(X * scale), found.policy))
    assert (found.check_error > found.budget) == above
    assert f"{'above' if above else 'within'} the budget" in str(found).splitlines()[1]


def test_a_check_without_a_number_is_above_the_budget():
    found = tuned(step_of(), 1e-1, check=lambda: X[:3] + 1, metric=lambda a, b: float("nan") if len(a) == 3 else 0.0)
    assert found.check_error == float("inf")
    assert "above the budget" in str(found)


def without_gradients(model):
    def step():
        with torch.no_grad():
            return model(X)

    return step


def with_backward(model):
    def step():
        y = model(X)
        y.square().mean().backward()
        return y

    return step


def with_optimizer(model):
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        optimizer.zero_grad()
        with_backward(model)()
        optimizer.step()
        return model(X)

    return step


RETURNED = {
    "a dict": lambda y: {"logits": y, "name": "y"},
    "a tuple": lambda y: (y, None, [y.sum()]),
    "a loss": lambda y: y.square().mean(),
    "a float": lambda y: y.square().sum().item(),
}
STEPS = {"no_grad": without_gradients, "backward": with_backward, "optimizer": with_optimizer} | {
    name: lambda model, returned=returned: lambda: returned(model(X)) for name, returned in RETURNED.items()
}


@pytest.mark.parametrize("make", STEPS.values(), ids=STEPS)
def test_steps_of_all_forms(make):
    found = tuned(make(Model("cos")), 1e-3)
    assert found.error <= 1e-3
    assert "cos" in wide(found)


def test_without_gradients_each_op_has_its_own_error():
    found = tuned(without_gradients(Model("cos", "sub")))
    errors = {part.name: part.part.error for part in found.parts}
    assert {*sorted(errors, key=errors.__getitem__)[-2:]} == {"cos", "sub"}
    assert errors["tanh"] == pytest.approx(2e-3, rel=0.9)
    assert wide(found) == {"cos", "sub"}


def test_a_step_that_draws_draws_the_same_in_each_run():
    model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5))
    found = tuned(lambda: model(X) + torch.randn(64, 16), 1e-2)
    assert found.chosen.name == "all low"
    assert found.error < 1e-2


def test_what_is_in_force_round_it_does_not_count():
    step = step_of("cos")
    alone = tuned(step)
    for region in (hmp.autocast("cpu", policy="torch-cpu"), torch.autocast("cpu")):
        with region:
            again = tuned(step)
        assert again.policy == alone.policy
        assert [point.error for point in again.points] == [point.error for point in alone.points]


def test_a_conversion_is_refused():
    hmp.convert()
    with pytest.raises(RuntimeError, match=r"^tune runs .* a conversion is in force. Call hmp.revert\(\) first$"):
        tuned(step_of("cos"))


def test_a_step_that_lowers_by_itself_is_refused():
    model = torch.nn.Linear(16, 8)
    with pytest.raises(ValueError, match=r"the step runs add_ in bfloat16 by itself\. Remove its own casts"):
        tuned(lambda: model(X).bfloat16().add_(1).float())


class Inside(nn.Module):
    """A module that enters a region by itself, in a block or by a decorator."""

    def __init__(self, region, *, decorated: bool = False) -> None:
        super().__init__()
        self.part, self.region = nn.Linear(16, 8), region
        if decorated:
            self.part.forward = region(self.part.forward)
            self.region = contextlib.nullcontext()

    def forward(self, x):
        with self.region:
            return self.part(x.float()).float()


REGIONS = {
    "torch.autocast": lambda: torch.autocast("cpu"),
    "torch.autocast of a dtype": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "hmp.autocast": lambda: hmp.autocast("cpu"),
}


@pytest.mark.parametrize("options", [{"others": "start", "start": "balanced"}, {}, {"check": True}], ids=str)
@pytest.mark.parametrize("decorated", [False, True], ids=["block", "decorator"])
@pytest.mark.parametrize("region", REGIONS)
def test_a_step_that_enters_a_region_is_refused(region, decorated, options):
    model, inside = nn.Linear(16, 16), Inside(REGIONS[region](), decorated=decorated)
    steps = [lambda: inside(model(X)), lambda: model(X)]
    checks = options.get("check", False)
    name, found = ("check", {"check": steps[0]}) if checks else ("step", options)
    with pytest.raises(ValueError, match=rf"^the {name} enters {region.split()[0]}, in itself or in a module"):
        tuned(steps[checks], 1e-6, **found)
    assert tuned(steps[1]).error <= BUDGET  # and nothing is left of that


@pytest.mark.parametrize("gradients", [True, False], ids=["gradients", "no_grad"])
@pytest.mark.parametrize("region", [torch.autocast, hmp.autocast], ids=["torch", "hmp"])
def test_a_region_that_is_off_is_accepted(region, gradients):
    model, inside = nn.Linear(16, 16), Inside(region("cpu", enabled=False))

    def step():
        with torch.set_grad_enabled(gradients):
            return inside(model(X))

    assert tuned(step).error <= BUDGET


@pytest.mark.parametrize("start", ["hmp", "balanced"])
def test_dropout_that_passes_its_input_on_is_not_lowered_unseen(start):
    """It has no numbers that could be measured, and hmp lowers it."""
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Dropout(), torch.nn.Linear(64, 16)).eval()
    found = hmp.tune(lambda: model(X), 1e-5, start=start, others="lower", cost="numbers")
    assert found.error <= 1e-5
    assert {point.error for point in found.points if point.name == "float32"} == {0.0}


def test_complex_results_count_whole():
    linear = torch.nn.Linear(16, 16)

    def step():
        y = linear(X)
        return torch.complex(torch.ones_like(y), y)

    found = hmp.tune(step, 1e-6, start="hmp", others="lower", cost="numbers")
    (low,) = (point for point in found.points if point.name == "all low")
    with hmp.autocast("cpu", policy=low.policy):
        ran = step()
    exact = step()
    assert low.error == pytest.approx(
        ((ran - exact).abs().square().sum() / exact.abs().square().sum()).sqrt().item(), rel=1e-3
    )


def test_integers_beside_the_results_do_not_count():
    step = step_of("cos")
    errors = [[point.error for point in tuned(each).points] for each in (step, lambda: (torch.arange(10**6), step()))]
    assert errors[0] == errors[1]


class TwoLayers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.large, self.small = torch.nn.Linear(16, 512), torch.nn.Linear(512, 16)

    def forward(self) -> torch.Tensor:
        return self.small(self.large(X))


@pytest.mark.parametrize("others", ["lower", "start"])
@pytest.mark.parametrize("start", ["hmp", "name for a module"])
def test_parts_are_where_the_policy_has_them(start, others):
    policy = hmp.Policy.load("hmp")
    policy = policy if start == "hmp" else policy.with_edits("+linear in small:fp32")
    for budget in (2e-3, 1e-3, 1e-1):
        found = hmp.tune(TwoLayers(), budget, per="module", others=others, start=policy, cost="numbers")
        for part in found.parts:
            named = [title for title, names in found.policy.limited.items() if part.name in names]
            assert part.list == (named[0] if named else found.policy.rule("linear").action)


def test_nothing_is_printed_unless_asked(capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = tuned(step_of("cos"))
    assert capfd.readouterr() == ("", "")
    tuned(step_of("cos"), progress=True)
    out, err = capfd.readouterr()
    ops = len({part.part.op for part in found.parts})
    assert (out, err) == ("", f"{ops} ops: at most {found.most_runs} runs\n")


def test_angles_are_large():
    assert (ANGLES - ANGLES.bfloat16()).abs().max() > 1


# What the low dtype of each op saves, what casts between two of them cost, and the ops that are faster in float32.
FREE = {
    "none": ([1.0, 2.0], {}, set()),
    "one, such as attention of one row": ([-1.0, 2.0], {}, {0}),
    "but for its casts": ([-1.0, 2.0], {(0, 1): 1.5}, set()),
    "with the op that it hands its result to": ([-3.0, 1.0], {(0, 1): 1.5}, {0, 1}),
}


@pytest.mark.parametrize(
    ("step", "told"),
    [(8.5, [0.5, 1.0]), (9.6, [None, None]), (11.0, [None, None])],
    ids=["half of what the ops save", "a seventh", "it got slower"],
)
def test_what_an_op_saves_is_told_where_the_step_saves_about_as_much(step, told):
    """4 ms were printed as saved in a step of 2.9 ms."""
    costs = Costs([1.0, 2.0], {}, 10.0)
    costs.fit(step)
    assert costs.told() == (told if None in told else pytest.approx(told))


@pytest.mark.parametrize(("saved", "borders", "expected"), FREE.values(), ids=FREE)
def test_what_is_faster_in_float32_runs_there_though_the_budget_does_not_need_it(saved, borders, expected):
    parts = [SimpleNamespace(error=1.0) for _ in saved]
    assert free(parts, Costs(saved, borders, sum(saved))) == expected
