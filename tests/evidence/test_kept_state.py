"""What compare and tune put back after each run, by kind (D50), and what they refuse by its name because it cannot be put back."""

from __future__ import annotations

import codecs
import collections
import copy
import io
import itertools
import logging
import logging.handlers
import queue
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
import pytest
import torch
from kinds_of_state import RESTORED, X, net
from torch import nn
from torch.utils.data import DataLoader

from habana_mp import hmp
from habana_mp._evidence import kept_state

INSTRUMENTS = {
    "compare": lambda step: hmp.compare(step, None, "balanced"),
    "tune": lambda step: hmp.tune(step, 0.02, start="balanced", others="lower", cost="numbers"),
}


def same(one, other) -> bool:
    """Down to the bits of tensors and arrays."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.dtype == other.dtype
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple, collections.deque)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, nn.Module):
        return same(one.state_dict(), other.state_dict())
    return one == other or callable(one)


@pytest.mark.parametrize("instrument", INSTRUMENTS)
@pytest.mark.parametrize("kind", RESTORED)
def test_each_kind_is_put_back(kind, instrument):
    step, state = RESTORED[kind]()
    before = copy.deepcopy([each.detach() if isinstance(each, torch.Tensor) else each for each in state()])
    INSTRUMENTS[instrument](step)
    assert same(before, state())
    step()
    assert not same(before, state())  # the row would show it


@pytest.mark.parametrize("kind", ["a trainer", "an average of the program's"])
def test_what_a_program_counts_stays(kind):
    step, _ = RESTORED[kind]()
    lost = []

    def counting():
        lost.append(1)
        return step()

    found = hmp.tune(counting, 0.02, cost="numbers")
    assert len(lost) == found.runs


# --- What cannot be put back

BATCHES = [X, X + 1, X + 2]


def batches():
    yield from BATCHES


class Loop:
    """Its method takes the next batch; another one, which is not called, would take from the other."""

    def __init__(self):
        self.model, self.batches, self.others = net(), iter(DataLoader(BATCHES)), iter(BATCHES)

    def __call__(self):
        return self.advance()

    def advance(self):
        return self.model(next(self.batches))

    def validate(self):
        return self.model(next(self.others))


def waiting():
    found = queue.Queue()
    found.put(X)
    return found


def uses(held, take=next):
    model = net()
    return lambda: model(take(held))


def lazy():
    model = nn.LazyLinear(8)
    return lambda: model(X)


REFUSED = {
    "a generator": (lambda: uses(batches()), r"held \(generator\)"),
    "an iterator of a list": (lambda: uses(iter(BATCHES)), r"held \(list_iterator\)"),
    "itertools": (lambda: uses(itertools.cycle(BATCHES)), r"held \(cycle\)"),
    "an iterator of a loader": (lambda: uses(iter(DataLoader(BATCHES))), r"held \(_SingleProcessDataLoaderIter\)"),
    "zip": (lambda: uses(zip(BATCHES, BATCHES, strict=True), lambda each: next(each)[0]), r"held \(zip\)"),
    "a queue": (lambda: uses(waiting(), lambda each: each.get()), r"held \(Queue\)"),
    "in an object": (Loop, r"Loop\.batches \(_SingleProcessDataLoaderIter\)"),
    "a lazy module": (lazy, "first to call a LazyLinear"),
}


@pytest.mark.parametrize("instrument", INSTRUMENTS)
@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_put_back_is_refused_by_name(kind, instrument):
    make, said = REFUSED[kind]
    with pytest.raises(RuntimeError, match=said):
        INSTRUMENTS[instrument](make())


def test_a_large_tensor_is_named_where_the_step_changes_it(monkeypatch):
    """No copy is made of it, as of a set of data."""
    monkeypatch.setattr(kept_state, "_MOST_BYTES", 1000)
    large, array, small, model = torch.zeros(1000), np.zeros(1000), torch.zeros(8), net()

    def step(*changed):
        for each in changed:
            each += 1
        return model(X) + large[0] + array[0] + small

    hmp.compare(step, None, "balanced")
    hmp.compare(lambda: step(small), None, "balanced")
    assert small.sum() == 0
    for changed, name in ((large, "large"), (array, "array")):  # found by either of its names
        with pytest.raises(RuntimeError, match=rf"the step changes (changed|{name}), which is too large"):
            hmp.compare(lambda changed=changed: step(changed), None, "balanced")


# --- What steps hold besides: nothing of it is state of the step

data = iter(BATCHES)  # which no step uses


class Slots:
    __slots__ = ("values",)

    def __getattr__(self, name):
        return {"known": 1}[name]  # KeyError for any other


class Point:
    def __init__(self):
        self.data = X


def console():
    from rich.console import Console

    own, model = Console(file=io.StringIO()), net()
    return lambda: own.print("step") or model(X)


def logger():
    own, model = logging.getLogger("own"), net()
    own.addHandler(logging.handlers.QueueHandler(queue.Queue()))
    own.propagate = False
    return lambda: own.warning("step") or model(X)


def pool():
    own, model = ThreadPoolExecutor(1), net()
    return lambda: own.submit(len, "step").result() and model(X)


def of_the_same_name():
    point, model = Point(), net()
    return lambda: model(point.data)


def holds(*held):
    model = net()
    return lambda: model(X) if held else None


ACCEPTED = {
    "a console": console,
    "a logger with a queue": logger,
    "a pool of threads": pool,
    "an attribute with the name of an iterator": of_the_same_name,
    "slots": lambda: holds(Slots()),
    "a file": lambda: holds(codecs.getwriter("utf-8")(io.BytesIO())),
    "a mock": lambda: holds(mock.MagicMock()),
    "a thread": lambda: holds(threading.current_thread()),
    "a large sparse tensor": lambda: holds(torch.sparse_coo_tensor([[0, 9], [1, 9]], [1.0, 2.0], (10**6, 10**6))),
    "a nested tensor": lambda: holds(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", ACCEPTED)
def test_what_a_step_holds_besides_is_accepted(kind):
    assert hmp.compare(ACCEPTED[kind](), None, None).same


def test_an_array_that_is_too_large_is_looked_at_in_parts(monkeypatch):
    monkeypatch.setattr(kept_state, "_MOST_BYTES", 0)
    own, model = np.zeros(1 << 24, np.float32), net()
    tracemalloc.start()
    try:
        assert hmp.compare(lambda: model(X) if own is not None else None, None, None).same
        assert tracemalloc.get_traced_memory()[1] < own.nbytes
    finally:
        tracemalloc.stop()
