"""The module that a row of a report names: the path of the one whose forward ran, whatever happened to modules before."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn

from habana_mp import hmp

X, W = torch.randn(4, 8), torch.randn(8, 8)


def linear_rows(report):
    return [row for row in report.to_dict()["rows"] if row["op"] == "linear"]


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = self.second = nn.Linear(8, 8)
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8)))

    def forward(self, x):
        return self.inner(self.second(self.first(x)))


class Direct(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer.forward(torch.mm(x, W))


class Unregistered(nn.Module):
    def forward(self, x):
        return nn.Linear(8, 8)(x)


MODULES = {
    "shared and called twice": (Shared, {"Shared: first": 2, "Shared: inner.0": 1, "Shared: inner.1.0": 1}),
    "forward called directly": (Direct, {"Direct": 1}),
    "not registered": (Unregistered, {"Unregistered: (Linear)": 1}),
    "root": (lambda: nn.Linear(8, 8), {"Linear": 1}),
}


@pytest.mark.parametrize("case", MODULES)
def test_rows_name_the_module(case):
    make, calls = MODULES[case]
    net = make()
    with hmp.report() as report:
        net(X)
    assert {row["module"]: row["calls"] for row in linear_rows(report)} == calls


def test_a_report_that_begins_inside_a_forward_sees_what_is_called_from_there():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            with hmp.report() as self.report:
                return torch.mm(self.layer(x), W)

    net = Net()
    hmp.convert()
    net(X)
    assert [(row["op"], row["module"]) for row in net.report.to_dict()["rows"]] == [("linear", "Linear"), ("mm", "")]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit], ids=lambda error: error.__name__)
def test_a_forward_that_raises_leaves_no_module_behind(error):
    class Raises(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            self.layer(x)
            raise error

    class Catches(nn.Module):
        def __init__(self):
            super().__init__()
            self.bad, self.good = Raises(), nn.Linear(8, 8)

        def forward(self, x):
            with pytest.raises(error):
                self.bad(x)
            self.bad = None
            return self.good(x)

    hmp.convert()
    with hmp.report() as report:
        Catches()(X)
        with pytest.raises(error):
            Raises()(X)
        for _ in range(20):  # over the memory of those that are gone
            nn.Sequential(nn.Linear(8, 8))(X)
    assert [row["module"] for row in linear_rows(report)] == [
        "Catches: bad.layer",
        "Catches: good",
        "Raises: layer",
        "Sequential: 0",
    ]


def named(name, layer):
    return nn.Sequential(OrderedDict({name: layer}))


def test_models_that_share_a_module_have_their_own_names_of_it():
    layer = nn.Linear(8, 8)
    encoder, decoder = named("encode", layer), named("decode", layer)
    with hmp.report() as report:
        encoder(X)
        decoder(X)
        encoder(X)
    calls = {row["module"]: row["calls"] for row in linear_rows(report)}
    assert calls == {"Sequential: encode": 2, "Sequential: decode": 1}


def test_a_module_that_is_renamed_after_a_drawing_has_its_new_name():
    """A drawing watches as a report does, and what is known of modules ends with it."""
    layer, model = nn.Linear(8, 8), nn.Sequential()
    model.add_module("before", layer)
    hmp.draw(model, X)
    del model.before
    model.add_module("after", layer)
    with hmp.report() as report:
        model(X)
    assert [row["module"] for row in linear_rows(report)] == ["Sequential: after"]


@pytest.mark.parametrize("watch", ["report", "draw", "log"])
def test_a_name_that_is_no_utf8(watch, monkeypatch, capsys):
    """Half of a character, as in file names of another encoding: it raised from the forward."""
    model = named("\udcff", nn.Linear(8, 8))
    monkeypatch.setenv("HABANA_MP_LOG", "detail" if watch == "log" else "")
    hmp.convert()
    if watch == "draw":
        assert hmp.draw(model, X).source
    with hmp.report() as report:
        model(X)
    assert [row["module"] for row in linear_rows(report)] == ["Sequential: \\udcff"]
    assert ("\\udcff" in capsys.readouterr().out) == (watch == "log")
