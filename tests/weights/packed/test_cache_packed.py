"""Packed weights: which products use them, that their numbers are those of plain copies bit for bit, and when a weight stays plain."""

import contextlib
import os
import subprocess
import sys
import threading

import pytest
import torch
import torch.nn.functional as F
from cached_weight import BF16, MODES, N, X, packs, set_packing, use, weight
from subprograms import MAPS_EACH_TENSOR
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from habana_mp import hmp

pytestmark = [
    pytest.mark.usefixtures("empty_cache"),
    packs,
]
NO_GRAPH = [mode for mode in MODES if mode != "grad"]
FRONTS = {
    "convert": lambda: contextlib.nullcontext(hmp.convert(policy="hmp")),
    "autocast": lambda: hmp.autocast("cpu", policy="hmp"),
}


def packed():
    return hmp.cache.info().packed


# What a module calls, and whether its weight is inputs x outputs. Looked up in each call, where a conversion has put the patched op.
PRODUCTS = {
    "linear": (lambda x, w, b: F.linear(x, w, b), False),  # noqa: PLW0108
    "linear-without-bias": (lambda x, w, b: F.linear(x, w), False),
    "linear-None": (lambda x, w, b: F.linear(x, w, None), False),
    "addmm": (lambda x, w, b: torch.addmm(b, x, w), True),
}
SHAPES = {
    **{f"{rows}-rows": (rows, 192, 96) for rows in (1, 2, 3, 7, 8, 16, 31, 33, 64, 200)},
    "odd-inputs": (5, 101, 128),
    "odd-outputs": (5, 128, 67),
    "one-output-more": (3, 128, 65),
    "wide": (4, 64, 3000),
    "deep": (4, 3000, 64),
}


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("product", PRODUCTS)
def test_the_numbers_of_a_plain_copy(product, shape, front):
    rows, inputs, outputs = SHAPES[shape]
    call, turned = PRODUCTS[product]
    x = torch.randn(rows, inputs)
    w = nn.Parameter(torch.randn((inputs, outputs) if turned else (outputs, inputs)))
    b = nn.Parameter(torch.randn(outputs))
    with torch.no_grad():
        want = call(x.to(BF16), w.to(BF16), b.to(BF16))
        with FRONTS[front]():
            for _ in range(2):
                y = call(x, w, b)
                assert torch.equal(y, want)
                assert not y.requires_grad
    assert packed() == 1


DEEP = 3072  # so many inputs that oneDNN adds up transposed ones in another order
# An input, and whether the packed copy is used: where the input lies row after row, or is cast to lie so.
INPUTS = {
    "vector": (lambda: torch.randn(DEEP), 1),
    "matrix": (lambda: torch.randn(6, DEEP), 1),
    "batch": (lambda: torch.randn(2, 3, DEEP), 1),
    "batch-of-batches": (lambda: torch.randn(1, 2, 3, DEEP), 1),
    "low": (lambda: torch.randn(6, DEEP).to(BF16), 1),
    "transposed-batch": (lambda: torch.randn(2, 3, DEEP).transpose(0, 1), 1),
    "low-transposed-batch": (lambda: torch.randn(2, 3, DEEP).to(BF16).transpose(0, 1), 0),
    "transposed-matrices": (lambda: torch.randn(2, DEEP, 3).mT, 0),
    "transposed-matrix": (lambda: torch.randn(DEEP, 6).t(), 0),
    "strided-vector": (lambda: torch.randn(DEEP, 4)[:, 0], 0),
    "strided-matrix": (lambda: torch.randn(6, 2 * DEEP)[:, ::2], 0),
}


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("given", INPUTS)
def test_inputs_of_every_form(given, front, monkeypatch):
    make, count = INPUTS[given]
    x = make()
    w, b = nn.Parameter(torch.randn(64, DEEP)), nn.Parameter(torch.randn(64))
    with torch.inference_mode(), FRONTS[front]():
        y = F.linear(x, w, b)
        assert packed() == count
    hmp.revert()
    monkeypatch.setenv("HABANA_MP_PACKED_WEIGHTS", "off")
    hmp.convert(policy="hmp")
    with torch.inference_mode():
        plain = F.linear(x, w, b)
        assert packed() == 0
    assert torch.equal(y, plain)
    assert y.stride() == plain.stride()
    assert y.is_inference()


@pytest.mark.parametrize("front", FRONTS)
def test_numbers_that_are_not_finite(front):
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e-40]).repeat(2, N // 4)
    w = nn.Parameter(torch.randn(N, N))
    with torch.no_grad(), FRONTS[front]():
        y = F.linear(x, w)
    assert torch.equal(y.isnan(), F.linear(x.to(BF16), w.to(BF16)).isnan())


class Mode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def under_a_function_mode(x, w):
    with Mode():
        return F.linear(x, w)


def without_onednn(x, w):
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        return F.linear(x, w)
    finally:
        torch._C._set_mkldnn_enabled(before)


def shared(x, w):
    other = w.detach()
    return F.linear(x, w), other


ATTENTION = nn.MultiheadAttention(N, 2)
SMALL, LYING = nn.Parameter(torch.randn(16, 16)), nn.Parameter(torch.randn(N, N).t())
# How many packed copies there are after a call.
CALLS = {
    "frozen, in grad mode": (1, lambda x, w: F.linear(x, w.requires_grad_(False))),
    "in attention": (2, lambda x, w: ATTENTION(*[x[None]] * 3)),
    "the input takes a gradient": (0, lambda x, w: F.linear(x.clone().requires_grad_(), w.requires_grad_(False))),
    "the weight takes a gradient": (0, lambda x, w: F.linear(x, w)),  # noqa: PLW0108
    "the bias takes a gradient": (0, lambda x, w: F.linear(x, w.requires_grad_(False), nn.Parameter(torch.zeros(N)))),
    "no parameter": (0, lambda x, w: F.linear(x, w.detach().clone())),
    "a view of a parameter": (0, lambda x, w: F.linear(x[:, : N // 2], w[:, : N // 2])),
    "a transposed parameter": (0, lambda x, w: F.linear(x, LYING)),
    "small": (0, lambda x, w: F.linear(x[:, :16], SMALL)),
    "by keywords": (0, lambda x, w: F.linear(input=x, weight=w)),
    "a low bias with gaps": (0, lambda x, w: F.linear(x, w, torch.arange(2.0 * N).to(BF16)[::2])),
    "a low bias of one number": (0, lambda x, w: torch.addmm(torch.ones(1).to(BF16).expand(N), x, w)),
    "addmm with alpha": (0, lambda x, w: torch.addmm(torch.zeros(N), x, w, alpha=2)),
    "addmm with a matrix added": (0, lambda x, w: torch.addmm(torch.zeros(2, N), x, w)),
    "no rows": (0, lambda x, w: F.linear(x[:0], w)),
    "a low batch that lies transposed": (
        0,
        lambda x, w: F.linear(x.to(BF16).repeat(3, 2, 1).mT.contiguous().mT, w, torch.zeros(N)),
    ),
    "under a function mode": (0, under_a_function_mode),
    "without oneDNN": (0, without_onednn),
    "memory that another tensor has": (0, shared),
    "mm": (0, lambda x, w: torch.mm(x, w)),  # noqa: PLW0108
}
RECORDS_GRAPH = [name for name in CALLS if name.startswith(("frozen", "the "))]


@pytest.mark.parametrize("name", CALLS)
def test_which_calls_use_it(name):
    count, call = CALLS[name]
    hmp.convert()
    with contextlib.nullcontext() if name in RECORDS_GRAPH else torch.no_grad():
        w = weight()
        held = call(X, w)
        assert packed() == count
    del held, w


def test_a_bad_shape_raises_torchs_own_error():
    hmp.convert()
    with torch.no_grad(), pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        F.linear(torch.randn(2, N + 1), weight())
    assert packed() == 0


class Ops(TorchDispatchMode):
    """The ops that torch dispatches, each answered by itself."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_mode_sees_nothing_of_the_cache():
    """It would run Python under the cache's lock."""
    hmp.convert()
    w = weight()
    with torch.no_grad():
        use(w)
    assert packed() == 1
    with Ops() as ops:
        hmp.cache.info()
        hmp.cache.clear()
    with torch.no_grad():
        use(w)
    with ops:
        hmp.revert()
    assert ops.seen == []


FIRST = """
import torch
from habana_mp import _core, hmp
from torch.utils._python_dispatch import TorchDispatchMode

class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert not str(func).startswith("mkldnn"), func
        return func(*args, **(kwargs or {}))

model, x = torch.nn.Linear(128, 128), torch.randn(2, 128)
_core._testing.measure_choices(False)
hmp.convert()
with torch.no_grad():
    with Mode():
        model(x)
    for _ in range(20):
        model(x)
print(hmp.cache.info().packed)
"""


def test_the_first_product_of_a_process_under_a_mode():
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, check=False)
    assert done.stdout == "1\n", done.stderr


def test_a_weight_of_zeros_decides_nothing_for_others(monkeypatch):
    set_packing("measured", monkeypatch)
    hmp.convert()
    zeros, w, x = nn.Parameter(torch.zeros(72, 96)), nn.Parameter(torch.randn(72, 96)), torch.randn(3, 96)
    with torch.no_grad():
        F.linear(x, zeros)
        assert torch.equal(F.linear(x, w), F.linear(x.to(BF16), w.to(BF16)))


def test_measured_choices_give_the_same_numbers(monkeypatch):
    set_packing("measured", monkeypatch)
    hmp.convert()
    w = weight()
    with torch.no_grad():
        for rows in (1, 5, 40, 50, 64):
            x = torch.randn(rows, N)
            assert torch.equal(F.linear(x, w), F.linear(x.to(BF16), w.to(BF16)))
    assert hmp.cache.info().entries == 1


def test_the_measurement_leaves_random_numbers_alone(monkeypatch):
    set_packing("measured", monkeypatch)
    hmp.convert()
    w, x = nn.Parameter(torch.randn(80, 96)), torch.randn(3, 96)
    before = torch.get_rng_state()
    with torch.no_grad():
        F.linear(x, w)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("value", ["yes", "On", "1", " ", "equal", "always"])
def test_a_bad_variable_changes_nothing(value, monkeypatch):
    monkeypatch.setenv("HABANA_MP_PACKED_WEIGHTS", value)
    with pytest.raises(ValueError, match=r"HABANA_MP_PACKED_WEIGHTS is '.*'; it takes on or off"):
        hmp.convert()
    with pytest.raises(ValueError, match="HABANA_MP_PACKED_WEIGHTS"):
        hmp.autocast("cpu")
    assert torch.mm(X, X.t()).dtype == torch.float32


def test_a_report_counts_its_casts_as_those_of_a_plain_copy(monkeypatch):
    rows = {}
    for packing in ("off", "unmeasured"):
        set_packing(packing, monkeypatch)
        hmp.convert()
        model = nn.Sequential(nn.Linear(N, N), nn.ReLU(), nn.Linear(N, N)).eval()
        with torch.no_grad(), hmp.report() as report:
            for _ in range(3):
                model(X)
        rows[packing] = [(row["op"], row["calls"], report.cache_hits(row["op"])) for row in report.to_dict()["rows"]]
        hmp.revert()
    assert rows["off"] == rows["unmeasured"]


def test_threads_share_a_packed_copy():
    hmp.convert()
    w = weight()
    with torch.no_grad():
        want = F.linear(X.to(BF16), w.to(BF16))
    wrong = []

    def work():
        with torch.no_grad():
            wrong.extend(1 for _ in range(200) if not torch.equal(use(w), want))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert packed() == 1


def test_the_tables_of_changes_run_with_packed_copies(in_every_layout):
    hmp.convert()
    w = weight()
    use(w)
    assert packed() == (in_every_layout != "plain")


RESIDENT = """
import torch
from habana_mp import _core, hmp

def resident():
    line = next(line for line in open("/proc/self/status") if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024

torch.set_num_threads(1)
_core._testing.measure_choices(False)
hmp.convert()
x, small, large = torch.randn(4, 2048), torch.nn.Linear(2048, 8), torch.nn.Linear(2048, 2048)
with torch.inference_mode():
    small(x)
    before = resident()
    large(x)
print((resident() - before) / hmp.cache.info().bytes)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_packing_keeps_no_memory_but_the_copy():
    done = subprocess.run(
        [sys.executable, "-c", RESIDENT],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **MAPS_EACH_TENSOR},
    )
    assert float(done.stdout) < 1.5  # twice as much where the plain numbers stay
