"""Chains of casts there and back, and tensors cast again: what the report makes a chain of, and what it does not."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from habana_mp import hmp

X, W, LOW = torch.randn(4, 8), torch.randn(8, 8), torch.randn(4, 8).bfloat16()
DOWN, UP = ["float32", "bfloat16", "float32"], ["bfloat16", "float32", "bfloat16"]


@pytest.fixture(autouse=True)
def _converted(_converted_by_none):
    hmp.convert()


def chains(function):
    with hmp.report() as report:
        function()
    return {
        (tuple(step["op"] for step in chain["ops"]), tuple(chain["path"])): chain["count"]
        for chain in report.to_dict()["ping_pong"]
    }


def recasts(function):
    with hmp.report() as report:
        function()
    return [
        (entry["tensor"], entry["to"], entry["times"], entry["needed"], entry["ops"])
        for entry in report.to_dict()["recast"]
    ]


def in_place():
    y = torch.mm(X, W)
    y += 1
    y.mul_(2)
    F.softmax(y, -1)


def copied():
    y = torch.empty(4, 8, dtype=torch.bfloat16)
    y.copy_(torch.mm(X, W))
    F.softmax(y, -1)


def both_halves():
    y = torch.mm(X, W)
    for half in torch.split(torch.cat([y, y]), 4):
        F.softmax(half, -1)


def two_readers():
    y = torch.mm(X, W)
    F.softmax(y, -1)
    F.log_softmax(y, -1)


def long():
    y = torch.mm(X, W)
    for _ in range(20):
        y = torch.sin(y)
    F.softmax(y, -1)


def other_weights():
    y = torch.mm(X, W)
    for _ in range(2):
        y = torch.mm(y, W)
    F.softmax(y, -1)


def there_and_back_again():
    y = torch.mm(X, W)
    for _ in range(2):
        y = torch.mm(F.softmax(y, -1), W)


# What runs, and the chains: (ops, path) -> count.
CHAINS = {
    "down": (lambda: F.softmax(torch.mm(X, W), -1), {("mm softmax", "down"): 1}),
    "up": (lambda: torch.mm(F.softmax(LOW, -1), W), {("softmax mm", "up"): 1}),
    "ops between": (lambda: torch.mm(torch.sin(torch.cos(F.softmax(LOW, -1))), W), {("softmax cos sin mm", "up"): 1}),
    "views": (lambda: F.softmax(torch.mm(X, W).view(-1).view(8, 4)[1:].mT, -1), {("mm softmax", "down"): 1}),
    "copies of a view": (lambda: F.softmax(torch.mm(X, W).mT.contiguous(), -1), {("mm contiguous softmax", "down"): 1}),
    "clone": (lambda: F.softmax(torch.mm(X, W).clone(), -1), {("mm clone softmax", "down"): 1}),
    "detach": (lambda: F.softmax(torch.mm(X, W).detach(), -1), {("mm softmax", "down"): 1}),
    "in place": (in_place, {("mm add_ mul_ softmax", "down"): 1}),
    "copied into another": (copied, {("mm copy_ softmax", "down"): 1}),
    "list": (both_halves, {("mm cat softmax", "down"): 2}),
    "promoted": (lambda: torch.mm(X, W) + X, {("mm add", "down"): 1}),
    "two readers": (two_readers, {("mm softmax", "down"): 1, ("mm log_softmax", "down"): 1}),
    "too long to be kept whole": (long, {("mm sin sin sin sin sin sin sin softmax", "down"): 1}),
    "casts of weights on the way": (other_weights, {("mm mm mm softmax", "down"): 1}),
    "again and again": (there_and_back_again, {("mm softmax", "down"): 2, ("softmax mm", "up"): 2}),
    # None of these is one.
    "one way": (lambda: torch.mm(torch.mm(X, W), W), {}),
    "from the low dtype": (lambda: F.softmax(torch.mm(LOW, LOW.mT), -1), {}),
    "to float16": (lambda: torch.mm(X, W).half().sum(), {}),
    "cast by hand at the end": (lambda: torch.sin(torch.mm(X, W).float()), {}),
    "cast by hand at the beginning": (lambda: F.softmax(X.bfloat16(), -1), {}),
    "cast by hand between": (lambda: torch.mm(torch.mm(X, W).float(), W), {}),
    "made anew": (lambda: F.softmax(torch.zeros_like(torch.mm(X, W), dtype=torch.float32), -1), {}),
}


@pytest.mark.parametrize("case", CHAINS)
def test_chains_there_and_back(case):
    run, wanted = CHAINS[case]
    paths = {"down": tuple(DOWN), "up": tuple(UP)}
    assert chains(run) == {(tuple(ops.split()), paths[way]): count for (ops, way), count in wanted.items()}


@pytest.mark.parametrize("policy", ["hmp", "torch-cpu"])
def test_autocast_has_chains_too(policy):
    hmp.revert()
    with hmp.autocast("cpu", policy=hmp.Policy.load(policy)):
        wanted = {(("mm", "mse_loss"), tuple(DOWN)): 1} if policy == "torch-cpu" else {}
        assert chains(lambda: F.mse_loss(torch.mm(X, W), X)) == wanted


def test_a_chain_names_ops_dtypes_and_modules_and_like_modules_are_one():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.act = nn.Linear(8, 8), nn.Softmax(-1)

        def forward(self, x):
            return self.act(self.up(x))

    net = nn.Sequential(Block(), Block(), Block())
    with hmp.report() as report:
        net(X)
    down, up = sorted(report.to_dict()["ping_pong"], key=lambda chain: -chain["count"])
    assert (down["count"], down["path"]) == (3, DOWN)
    assert down["ops"] == [
        {"op": "linear", "module": "Sequential: *.up", "dtype": "bfloat16"},
        {"op": "softmax", "module": "Sequential: *.act", "dtype": "float32"},
    ]
    assert (up["count"], up["path"], [step["dtype"] for step in up["ops"]]) == (2, UP, ["float32", "bfloat16"])
    assert 0 < down["seconds"] <= report.to_dict()["cast_seconds"]


# Tensors cast again.


def again(change=None, times=3):
    x = torch.randn(4, 8)
    for _ in range(times):
        torch.mm(x, LOW.mT)
        if change is not None:
            change(x)


def steps():
    """A weight that the optimizer changes between is needed anew."""
    layer = nn.Linear(8, 8, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(3):
        layer(LOW).sum().backward()
        optimizer.step()


def by_name(x):
    x[0] = 1


RECASTS = {
    "three times": (again, [("output of randn", "bfloat16", 3, 1, ["mm"])]),
    "changed in place": (lambda: again(lambda x: x.add_(1)), []),
    "changed by a function": (lambda: again(lambda x: F.relu(x, inplace=True)), []),
    "changed in part": (lambda: again(by_name), []),
    "changed through a view": (lambda: again(lambda x: x[0].zero_()), []),
    "once": (lambda: again(times=1), []),
    "by two ops": (lambda: [f(y, W.bfloat16()) for y in [torch.sin(X)] for f in (torch.mm, F.linear)], [("output of sin", "bfloat16", 2, 1, ["linear", "mm"])]),
    "made elsewhere": (lambda: [torch.mm(X, LOW.mT) for _ in range(2)], [("a weight or an input of mm", "bfloat16", 2, 1, ["mm"])]),
    "another part": (lambda: [torch.mm(X[i : i + 2], LOW.mT) for i in (0, 2)], []),
    "to other dtypes": (lambda: [torch.sin(X), torch.mm(X, LOW.mT)], []),
    "made anew each time": (lambda: [torch.mm(torch.sin(X), LOW.mT) for _ in range(3)], []),
}  # fmt: skip


@pytest.mark.parametrize(
    "mode", [torch.enable_grad, torch.no_grad, torch.inference_mode], ids=lambda mode: mode.__name__
)
@pytest.mark.parametrize("case", RECASTS)
def test_tensors_cast_again(case, mode):
    run, wanted = RECASTS[case]
    with mode():
        assert recasts(run) == wanted


def test_a_weight_between_steps_is_no_recast():
    assert recasts(steps) == []


def test_a_recast_tells_bytes_and_modules():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(8, 8, bias=False) for _ in range(3))

        def forward(self, x):
            return self.q(x), self.k(x), self.v(x)

    net = Heads()
    x = torch.sin(X)
    with hmp.report() as report:
        net(torch.cos(x))
    [entry] = report.to_dict()["recast"]
    assert (entry["tensor"], entry["times"], entry["needed"]) == ("output of cos", 3, 1)
    assert (entry["ops"], entry["modules"], entry["bytes"]) == (
        ["linear"],
        ["Heads: k", "Heads: q", "Heads: v"],
        2 * 64,
    )
    assert 0 < entry["seconds"] <= report.to_dict()["cast_seconds"]


def test_what_the_cache_serves_is_no_recast():
    layer = nn.Linear(512, 512, bias=False)
    x = torch.randn(2, 512).bfloat16()
    with torch.no_grad():
        assert recasts(lambda: [layer(x) for _ in range(3)]) == []


def test_reports_in_a_row_know_nothing_of_each_other():
    y = torch.mm(X, W)
    with hmp.report():
        z = torch.mm(X, W)
        torch.mm(X, W)
    assert chains(lambda: (F.softmax(y, -1), F.softmax(z, -1))) == {}
    assert recasts(lambda: torch.mm(X, W)) == []
