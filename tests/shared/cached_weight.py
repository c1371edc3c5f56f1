"""A weight that is cached, what it is used for, and how its result is held against the cast by hand."""

import contextlib
import copy
import ctypes
import io
import multiprocessing
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import habana_mp._core as _core
from habana_mp import hmp

BF16, FP32 = torch.bfloat16, torch.float32
N = 128  # a weight is N x N: more than the smallest that is cached
ROW = 5  # the row that is changed; the samples lie in rows 0, 8, 16, ... and in the last one
BYTES = 2 * N * N  # of a copy
X = torch.linspace(-1, 1, 2 * N).view(2, N)
MODES = {"grad": contextlib.nullcontext, "no_grad": torch.no_grad, "inference_mode": torch.inference_mode}

# What a weight is used in where a test does not say: without a graph its copy is packed.
records_graph = contextlib.nullcontext


fork = multiprocessing.get_context("fork")
# Python 3.12 warns of every fork of a process with threads.
may_fork = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

# A test of packed copies.
packs = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN has no bfloat16 on this CPU: nothing is packed"
)

# Whether weights are packed: not at all, or where they can be, or where a measurement finds that faster.
PACKINGS = {"off": ("off", False), "unmeasured": ("on", False), "measured": ("on", True)}


def set_packing(packing, monkeypatch):
    """From the next ``convert`` or region on."""
    variable, measures = PACKINGS[packing]
    monkeypatch.setenv("HABANA_MP_PACKED_WEIGHTS", variable)
    _core._testing.measure_choices(measures)


def weight(frozen=False):
    return nn.Parameter(torch.randn(N, N), requires_grad=not frozen)


def use(p):
    with records_graph():
        return F.linear(X, p)


def in_bf16(p):
    return F.linear(X.to(BF16), p.to(BF16))


# What a use computes.
as_copied = in_bf16


def listed(layout, *lower):
    """A policy by which linear has copies in a layout."""
    in_8_bits = layout == "int8"
    return hmp.Policy.from_ops(lower=[*lower, *["linear"] * (not in_8_bits)], int8=["linear"] * in_8_bits)


def by_hand(p):
    with torch.no_grad():
        return as_copied(p)


def is_fresh(p):
    return torch.equal(use(p), by_hand(p))


def is_fresh_in_every_mode(p):
    return all(is_fresh_in(mode, p) for mode in MODES.values())


def is_fresh_in(mode, p):
    with mode():
        return is_fresh(p)


def casts():
    """Casts of cached weights since the counts began, and uses of a copy without one."""
    info = hmp.cache.info()
    return info.misses + info.refreshed, info.hits


def off(monkeypatch):
    """A conversion without the cache."""
    monkeypatch.setenv("HABANA_MP_CACHE_BYTES", "0")
    hmp.convert()
    monkeypatch.delenv("HABANA_MP_CACHE_BYTES")


def run(program, monkeypatch, cached):
    """What a program gives under convert, with or without the cache: tensors."""
    if cached:
        hmp.convert()
    else:
        off(monkeypatch)
    torch.manual_seed(0)
    return [value.detach().clone() for value in program()]


def net():
    return nn.Sequential(nn.Linear(N, N), nn.ReLU(), nn.Linear(N, N))


def module_of(p):
    module = nn.Linear(N, N, bias=False)
    module.weight = p
    return module


def written(p, value=3.0):
    """A copy with another row."""
    changed = p.detach().clone()
    changed[ROW] = value
    return changed


def write_bytes(address, value=3.0):
    row = np.full(N, value, np.float32)
    ctypes.memmove(address + 4 * N * ROW, row.ctypes.data, row.nbytes)


def sparse_gradient(p):
    p.grad = torch.zeros_like(p)
    p.grad[ROW] = torch.linspace(1, 2, N)


OPTIMIZERS = {
    "sgd-loop": lambda ps: torch.optim.SGD(ps, lr=0.5, foreach=False),
    "sgd-foreach": lambda ps: torch.optim.SGD(ps, lr=0.5, momentum=0.9, foreach=True),
    "sgd-fused": lambda ps: torch.optim.SGD(ps, lr=0.5, fused=True),
    "sgd-fused-momentum": lambda ps: torch.optim.SGD(ps, lr=0.5, momentum=0.9, nesterov=True, fused=True),
    "adam-loop": lambda ps: torch.optim.Adam(ps, lr=0.5, foreach=False),
    "adam-foreach": lambda ps: torch.optim.Adam(ps, lr=0.5, foreach=True),
    "adam-fused": lambda ps: torch.optim.Adam(ps, lr=0.5, fused=True),
    "adam-differentiable": lambda ps: torch.optim.Adam(ps, lr=0.5, amsgrad=True),
    "adamw-fused": lambda ps: torch.optim.AdamW(ps, lr=0.5, weight_decay=0, fused=True),
    "adagrad-fused": lambda ps: torch.optim.Adagrad(ps, lr=0.5, fused=True),
    "adagrad-loop": lambda ps: torch.optim.Adagrad(ps, lr=0.5),
    "adadelta": lambda ps: torch.optim.Adadelta(ps, lr=50),
    "adafactor": lambda ps: torch.optim.Adafactor(ps, lr=0.5),
    "adamax": lambda ps: torch.optim.Adamax(ps, lr=0.5),
    "asgd": lambda ps: torch.optim.ASGD(ps, lr=0.5, lambd=0),
    "nadam": lambda ps: torch.optim.NAdam(ps, lr=0.5),
    "radam": lambda ps: torch.optim.RAdam(ps, lr=0.5),
    "rmsprop": lambda ps: torch.optim.RMSprop(ps, lr=0.5),
    "rprop": lambda ps: torch.optim.Rprop(ps, lr=0.5),
    "muon": lambda ps: torch.optim.Muon(ps, lr=0.5, weight_decay=0),
}


def copied(model, way):
    """A copy of a module: by ``deepcopy`` or ``copy``, or through ``pickle`` or ``torch.save``."""
    if way == "torch.save":
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        return torch.load(file, weights_only=False)
    return pickle.loads(pickle.dumps(model)) if way == "pickle" else getattr(copy, way)(model)
