"""Conversions and calls leave nothing behind in memory."""

from __future__ import annotations

import gc
import sys
import tracemalloc

import pytest
import torch
import torch.nn.functional as F
from namespaces import a

from habana_mp import hmp
from habana_mp._policy.homes import homes


def test_conversions_do_not_accumulate():
    ops = [torch.mm, torch.Tensor.mm, F.linear, F.relu, torch.Tensor.__add__, torch.einsum]

    def cycle(times):
        for _ in range(times):
            hmp.convert()
            torch.mm(a(), a())
            hmp.convert(opt_level="O2")
            hmp.revert()

    cycle(3)
    gc.collect()
    before = [sys.getrefcount(op) for op in ops]
    objects = len(gc.get_objects())
    tracemalloc.start()
    try:
        cycle(2)
        gc.collect()
        base = tracemalloc.get_traced_memory()[0]
        cycle(50)
        gc.collect()
        growth = tracemalloc.get_traced_memory()[0] - base
    finally:
        tracemalloc.stop()
    assert [sys.getrefcount(op) for op in ops] == before
    assert len(gc.get_objects()) - objects < 200
    assert growth < 50_000


def test_calls_do_not_leak():
    """References of arguments, casts, containers and results, of calls that pass and calls that fail."""
    hmp.convert()
    x, y = torch.ones(2, 2), torch.ones(2, 2).bfloat16()
    tensors = [x, y]
    keywords = {"mat2": y}

    def calls():
        torch.mm(x, y)
        torch.mm(x, **keywords)
        torch.cat(tensors)
        torch.cat((x, y))
        F.linear(x, weight=y)
        F.layer_norm(x, (2,))
        F.mse_loss(y, x)
        y.clone().add_(x)
        for call in (lambda: torch.mm(x, 3), lambda: torch.cat([x, y, 3]), lambda: torch.mm(x, torch.ones(3, 3))):
            with pytest.raises((TypeError, RuntimeError)):
                call()

    calls()
    gc.collect()
    before = [sys.getrefcount(value) for value in (x, y, tensors, keywords, None.__class__, torch.mm)]
    objects = len(gc.get_objects())
    for _ in range(50):
        calls()
    gc.collect()
    assert [sys.getrefcount(value) for value in (x, y, tensors, keywords, None.__class__, torch.mm)] == before
    assert len(gc.get_objects()) - objects < 50


def test_a_conversion_leaves_the_table_of_homes_alone():
    found = homes()
    hmp.convert()
    assert homes() is found
    assert all(not hasattr(home.function(), "rule") for home in found)
