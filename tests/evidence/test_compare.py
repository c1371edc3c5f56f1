"""hmp.compare: what differs between two runs of a step, or of two, and where it is made (issue: decisions of its results in docs/values.md)."""

from __future__ import annotations

import contextlib
import copy
import json
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from measured_net import NORM_WIDE, TARGET, X, loss_of, relative
from torch import nn

import habana_mp._core as _core
from habana_mp import hmp
from zoo.differences import LOWERED, STEPS, Planted, compared, compared_lower, is_named, net, step_of

LOW = hmp.Policy.from_ops(lower=["linear"], name="low")


@pytest.mark.parametrize("name", STEPS)
def test_a_planted_difference_is_named_where_it_is_made(name):
    planted = STEPS[name]
    found = compared(planted)
    assert not found.same
    assert is_named(found, planted.ops, planted.module, planted.phase), found.first


@pytest.mark.parametrize("op", LOWERED)
def test_a_lowered_op_is_named_in_the_first_module_that_has_it(op):
    found = compared_lower(op)
    assert is_named(found, (LOWERED[op][0],), LOWERED[op][1]), found.first
    assert found.first.kind == "precision"
    assert found.first.runs_in[0] == "float32"
    assert found.first.runs_in[1].startswith("bfloat16")
    assert found.first.rules == ("", f"lower: {op}, low")


def test_nothing_planted_is_the_same():
    found = compared(Planted(lambda _: None, (), ""))
    assert (found.same, found.first, found.worst, found.rows) == (True, None, None, ())
    assert (found.gradient_error, found.result_error) == (0, 0)
    assert found.calls > 50
    found.assert_same()


def outputs(model):
    return lambda: model(X)


def training(model):
    def step():
        loss = loss_of(model)
        loss.backward()
        return loss

    return step


@pytest.mark.parametrize("policy", [None, "hmp", "torch-cpu", LOW])
@pytest.mark.parametrize("make", [outputs, training], ids=["inference", "training"])
def test_a_policy_beside_itself_is_the_same(policy, make, net):
    assert hmp.compare(make(net), policy, policy).same


@pytest.mark.parametrize("front_end", ["convert", "autocast", "neither"])
def test_two_steps_run_under_what_is_in_force(front_end, net):
    if front_end == "convert":
        hmp.convert(policy="torch-cpu")
    region = hmp.autocast("cpu", policy="torch-cpu") if front_end == "autocast" else contextlib.nullcontext()
    with region:
        found = hmp.compare(lambda: training(net)() and None, outputs(net))
        other = hmp.compare(training(net), outputs(net))
    assert found.same
    assert found.calls >= 4
    assert (other.same, other.first.kind, other.result_error) == (False, "only in a", None)
    assert other.notes == ("The results of the steps have different sizes and are not compared.",)


def test_a_step_runs_once_under_each_policy(net):
    seen = []
    hmp.compare(lambda: seen.append(net(X).dtype), None, "hmp")
    assert seen == [torch.float32, torch.bfloat16]


def test_what_an_op_passes_on_is_not_what_it_makes(net):
    found = hmp.compare(training(net), NORM_WIDE, "torch-cpu")
    made = {(row.op, row.kind) for row in found.rows if row.phase == "forward"}
    assert ("layer_norm", "precision") in made
    assert not any(kind in ("given", "result") for _, kind in made)
    norm = next(row for row in found.rows if row.op == "layer_norm" and row.phase == "forward")
    passed = [
        row for row in found.rows if row.op == "linear" and row.module.endswith("last") and row.phase == "forward"
    ]
    assert found.first == norm
    assert norm.made == pytest.approx(norm.total, rel=0.05)  # of a sample
    assert [(row.kind, row.made) for row in passed] == [("passed on", 0)]
    assert passed[0].total > 0


def test_the_change_of_the_loss_is_foretold_to_first_order(net):
    def step():
        F.cross_entropy(net(X).double(), TARGET).backward()  # in float32 it would not show

    found = hmp.compare(step, None, LOW)
    (before,), (after,) = found.losses
    changes = [row.loss_change for row in found.rows]
    assert sum(changes) == pytest.approx(after - before, abs=0.02 * sum(map(abs, changes)))
    assert sum(row.share for row in found.rows) == pytest.approx(1)


def test_gradients_and_results_are_compared_at_the_end(net):
    with hmp.autocast("cpu", policy=LOW):
        low = net(X)
        loss_of(net).backward()
    gradients = torch.cat([p.grad.flatten() for p in net.parameters()])
    net.zero_grad()
    wide = net(X)
    loss_of(net).backward()
    exact = torch.cat([p.grad.flatten() for p in net.parameters()])
    net.zero_grad()

    def step():
        loss_of(net).backward()
        return net(X)

    found = hmp.compare(step, None, LOW)
    assert found.result_error == pytest.approx(relative(low, wide), rel=1e-2)
    assert found.gradient_error == pytest.approx(relative(gradients, exact), rel=1e-2)


def test_without_a_loss_random_sums_of_the_outputs_tell_the_shares(net):
    found = hmp.compare(outputs(net), None, LOW)
    shares = {row.module: row.share for row in found.rows if row.kind == "precision"}
    assert sum(shares.values()) == pytest.approx(1)
    assert min(shares.values()) > 0.1
    assert all(p.grad is None for p in net.parameters())


def test_numbers_that_no_gradient_comes_to_are_followed_to_those_that_have_one(net):
    """As rotary positions are: the error of an op under no_grad, and what it does to the loss."""
    scale = torch.linspace(0.5, 1.5, 4)

    def step():
        with torch.no_grad():
            scaled = torch.mul(scale, 3.3)
        loss = F.cross_entropy(net(X) * scaled, torch.zeros(len(X), dtype=torch.long))
        loss.backward()

    found = hmp.compare(step, None, hmp.Policy.from_ops(lower=["mul"], name="low"))
    assert found.worst.op == "mul"
    (before,), (after,) = found.losses
    assert sum(row.loss_change for row in found.rows) == pytest.approx(after - before, rel=0.1)


def test_casts_of_torch_autocast_are_known(net):
    def step(on):
        def run():
            with torch.autocast("cpu", enabled=on):
                return net(X)

        return run

    found = hmp.compare(step(False), step(True))
    assert (found.first.op, found.first.kind) == ("linear", "precision")
    assert found.first.runs_in == ("float32", "bfloat16")


@pytest.mark.parametrize("ends", ["returns", "raises", "is interrupted"])
def test_state_is_put_back(ends):
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict(), [p.grad for p in model.parameters()]))
    states = torch.get_rng_state(), random.getstate()
    own = [p.grad for p in model.parameters()]
    error = {"raises": ZeroDivisionError, "is interrupted": KeyboardInterrupt}.get(ends)
    seen = []

    def step():
        seen.append(random.random())
        y = model(torch.randn(8, 4))
        y.sum().backward()
        optimizer.step()
        if error is not None:
            raise error
        return y

    with pytest.raises(error) if error is not None else contextlib.nullcontext():
        assert not hmp.compare(step, None, "hmp").same
    after = model.state_dict(), optimizer.state_dict(), [p.grad for p in model.parameters()]
    for old, new in zip(tensors_of(before), tensors_of(after), strict=True):
        assert torch.equal(old, new)
    assert all(a is p.grad for a, p in zip(own, model.parameters(), strict=True))
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert len({*seen}) == 1
    assert not _core.reporting()
    assert hmp.find_nonfinite(lambda: None) is None  # nothing is left looking


def tensors_of(values):
    found = []
    torch.utils._pytree.tree_map_only(torch.Tensor, found.append, values)
    return found


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ((3,), TypeError, "step must be a function without arguments or a recording, not 3"),
        ((print, 3), TypeError, "a policy must be a Policy, the name of a preset"),
        ((print, None, "no-such"), ValueError, "Unknown policy 'no-such'"),
        ((print, print, "hmp"), TypeError, "compare runs two steps under the policy in force"),
    ],
    ids=["no step", "no policy", "unknown", "steps and a policy"],
)
def test_what_is_refused(arguments, error, said):
    with pytest.raises(error, match=said):
        hmp.compare(*arguments)


def test_inside_of_what_measures_it_is_refused(net):
    with hmp.report(values=True), pytest.raises(RuntimeError, match=r"compare cannot run inside hmp.report"):
        hmp.compare(outputs(net), None, "hmp")
    with pytest.raises(RuntimeError, match="compare is already running"):
        hmp.compare(lambda: hmp.compare(outputs(net), None, "hmp"), None, "hmp")
    with pytest.raises(RuntimeError, match="find_nonfinite cannot run inside compare"):
        hmp.compare(lambda: hmp.find_nonfinite(outputs(net)), None, "hmp")
    assert not hmp.compare(outputs(net), None, "hmp").same


def test_a_report_round_it_goes_on(net):
    with hmp.report() as report:
        hmp.compare(outputs(net), None, "hmp")
    assert report.casts() > 0


def test_programs_that_share_nothing_are_not_the_same():
    found = hmp.compare(lambda: torch.exp(X), lambda: torch.sin(X))
    assert not found.same
    assert found.first.kind == "only in b"
    assert found.notes == ("The two runs have no call in common.",)
    assert "only in a: 1 call (exp)" in str(found)


def test_other_sizes_are_a_difference(net):
    found = hmp.compare(outputs(net), lambda: net(X[:8]))
    assert not found.same
    assert (found.first.op, found.first.kind, found.first.total) == ("linear", "given", None)
    assert found.result_error is None


def test_numbers_that_are_not_finite_are_a_difference(net):
    found = hmp.compare(outputs(net), lambda: net(X / 0))
    assert found.first.op == "div"
    assert "not finite" in str(found)
    json.loads(found.to_json(), parse_constant=pytest.fail)


def test_assert_same_names_the_first_op(net):
    with pytest.raises(
        AssertionError, match=r"first difference\n  linear in Net: first, in the forward pass: a float32"
    ):
        hmp.compare(training(net), None, LOW).assert_same()


def test_what_is_shown_and_written(net, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = hmp.compare(training(net), None, "hmp")
    text = str(found)
    assert text.startswith("a: no casts\nb: hmp\n\nfirst difference\n  linear in Net: first")
    assert "gradients differ by 0.00" in text
    assert json.loads(found.to_json("c.json"))["first"]["op"] == "linear"
    page = found.to_html("c.html")
    assert "<svg" in page
    assert "Net: first" in page
    assert found._repr_html_().startswith("<iframe")


def test_a_training_loop_is_compared_to_its_end(net):
    def run():
        torch.manual_seed(0)
        optimizer = torch.optim.AdamW(net.parameters(), foreach=True)
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(net).backward()
            optimizer.step()

    assert hmp.compare(run, "hmp", "hmp").same
    found = hmp.compare(run, None, LOW)
    assert [len(each) for each in found.losses] == [3, 3]
    assert not any(row.kind in ("given", "result") and row.phase == "forward" for row in found.rows)


def test_the_nets_of_the_table_run_alike_twice():
    assert hmp.compare(step_of(net()), step_of(net())).same


@pytest.mark.parametrize(
    "module",
    [lambda: nn.BatchNorm1d(16), lambda: nn.LayerNorm(16), lambda: nn.MultiheadAttention(16, 4)],
    ids=["batch norm", "layer norm", "attention"],
)
def test_what_a_forward_keeps_for_its_backward_is_nothing_given(module):
    """Statistics and masks are made by the forward, running ones too: their differences are passed on."""
    torch.manual_seed(0)
    layers = nn.ModuleList([nn.Linear(16, 16), module(), nn.Linear(16, 4)])

    def step():
        y = layers[0](X)
        y = layers[1](y, y, y)[0] if isinstance(layers[1], nn.MultiheadAttention) else layers[1](y)
        layers[2](y[0] if isinstance(y, tuple) else y).square().sum().backward()

    found = hmp.compare(step, None, "hmp")
    assert {row.kind for row in found.rows} <= {"precision", "passed on"}, str(found)


def test_policies_are_not_compared_under_a_conversion():
    """Its casts would come before theirs."""
    hmp.convert()
    with pytest.raises(RuntimeError, match=r"^compare runs .* a conversion is in force. Call hmp.revert\(\) first$"):
        hmp.compare(lambda: torch.ones(2), None, "hmp")


def test_autocast_of_torch_round_policies_does_not_count():
    linear, x = torch.nn.Linear(4, 4), torch.ones(2, 4)
    with torch.autocast("cpu"):
        found = hmp.compare(lambda: linear(x), None, hmp.Policy.from_ops(rest="fp32", name="wide"))
    assert found.same
    with torch.autocast("cpu"):
        assert not hmp.compare(lambda: linear(x), None, "hmp").same


def test_what_lies_in_memory_before_it_is_initialized_is_no_number_of_the_step():
    """A weight is made of memory that may hold anything. What it held in the other run named another weight as its partner."""
    held = [(1.0, 0.0), (0.0, 1.0)]  # by the two weights, in the two runs, the last one first

    def step():
        torch.manual_seed(0)
        weights = [nn.Parameter(torch.from_numpy(np.full((4, 4), each, np.float32))) for each in held.pop()]
        for weight in weights:
            nn.init.uniform_(weight)
        x = torch.ones(2, 4)
        loss = (x @ weights[0]).sum() + (x @ weights[1]).square().sum()
        loss.backward()
        return loss

    found = hmp.compare(step)
    assert found.gradient_error == 0
    assert found.same
