"""Weights in 8 bits and threads that call the model: torch holds a weight for each call, which is nobody else's hold of it."""

import contextlib
import threading

import pytest
import torch
import torch.nn.functional as F
from offloaded import N, X, net, weights_of
from torch import nn
from torch.utils.dlpack import from_dlpack, to_dlpack

from habana_mp import hmp

LISTS = ("weight_int8", "int8")


@contextlib.contextmanager
def calling(function, threads=2):
    """Threads that call it all the time, at least once before the block and once in it."""
    stop, begun = threading.Event(), threading.Barrier(threads + 1)

    def calls():
        with torch.no_grad():
            function()
            begun.wait()
            while not stop.is_set():
                function()

    started = [threading.Thread(target=calls) for _ in range(threads)]
    for thread in started:
        thread.start()
    try:
        begun.wait()
        yield
    finally:
        stop.set()
        for thread in started:
            thread.join()


def convert(name):
    hmp.convert(policy=hmp.Policy.from_ops(**{name: ["linear"]}))


def uses(function):
    """The casts and the hits of a call."""
    before = hmp.cache.info()
    with torch.no_grad():
        function()
    after = hmp.cache.info()
    return after.misses + after.refreshed - before.misses - before.refreshed, after.hits - before.hits


@pytest.mark.parametrize("name", LISTS)
def test_a_long_call_on_another_thread_ends_no_copy(name):
    convert(name)
    p, rows = nn.Parameter(torch.randn(N, N)), torch.randn(2000, N)
    with calling(lambda: F.linear(rows, p), threads=1), torch.no_grad():
        for _ in range(50):
            F.linear(X, p)
    assert uses(lambda: F.linear(X, p)) == (0, 1)
    info = hmp.cache.info()
    assert (info.misses + info.refreshed, info.invalidated) == (1, {})


@pytest.mark.parametrize("name", LISTS)
def test_a_call_that_began_before_the_conversion_is_forgotten(name):
    p, rows = nn.Parameter(torch.randn(N, N)), torch.randn(2000, N)
    with calling(lambda: F.linear(rows, p), threads=1), torch.no_grad():
        convert(name)
        for _ in range(20):
            F.linear(X, p)
    with torch.no_grad():
        F.linear(X, p)
    assert uses(lambda: F.linear(X, p)) == (0, 1)


@pytest.mark.parametrize("name", LISTS)
def test_restore_and_offload_while_threads_call(name):
    convert(name)
    model = net()
    with torch.no_grad():
        expected = model(X)
    wrong = []
    with calling(lambda: torch.equal(model(X), expected) or wrong.append(1)):
        moved = []
        for _ in range(10):
            moved.append(hmp.cache.offload(model))
            hmp.cache.restore(model)
    assert wrong == []
    assert [(each.weights, each.left) for each in moved] == [(3, {})] * 10
    assert uses(lambda: model(X)) == (0, 3)
    assert hmp.cache.info().invalidated == {}


@pytest.mark.parametrize("name", LISTS)
def test_each_use_of_an_exported_weight_is_counted(name):
    convert(name)
    model = net(1).requires_grad_(False)
    assert uses(lambda: model(X)) == (1, 0)
    weights_of(model)[0].numpy()
    for count in (1, 2, 3):
        assert uses(lambda: model(X)) == (1, 0)
        assert hmp.cache.info().invalidated == {"foreign": count}
    assert hmp.cache.info().bytes == 0


@pytest.mark.parametrize("name", LISTS)
def test_a_capsule_is_seen_while_a_thread_calls(name):
    """One from before the conversion: while it is held, each use rounds the weight anew."""
    p, rows = nn.Parameter(torch.randn(N, N), requires_grad=False), torch.randn(2000, N)
    alias = from_dlpack(to_dlpack(p))
    convert(name)
    with torch.no_grad():
        F.linear(X, p)
    with calling(lambda: F.linear(rows, p), threads=1), torch.no_grad():
        for value in range(3):
            alias[5] = float(value)
            row = p[5:6].clone()
            assert torch.equal(F.linear(X, p)[:, 5:6], F.linear(X, row))
