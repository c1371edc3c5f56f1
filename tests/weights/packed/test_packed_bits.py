"""Packed weights give the bits of plain ones: round the sizes below which torch leaves oneDNN out, and round the smallest normal number."""

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from cached_weight import BF16, packs, set_packing
from torch import nn

from habana_mp import hmp
from habana_mp._torch_private import CPU, VERSION

pytestmark = [pytest.mark.usefixtures("empty_cache"), packs]
# Rows, inputs and outputs. torch computes products of up to 16 * 16 * 16 multiplications itself.
SHAPES = [
    *((1, inputs, outputs) for inputs, outputs in [(64, 64), (1, 4096), (4096, 1), (2, 2048), (32, 128), (128, 32)]),
    *((1, inputs, outputs) for inputs, outputs in [(64, 65), (65, 64), (1, 4097), (4097, 1), (17, 241), (2, 2049)]),
    *((2, inputs, outputs) for inputs, outputs in [(64, 64), (1, 4096), (4096, 1), (4096, 2), (5000, 1)]),
    *((rows, inputs, outputs) for rows in (3, 16, 33, 100) for inputs, outputs in [(96, 64), (4096, 1), (4099, 3)]),
]
# Of the input and of the weight: products of about 1, 1e-36 (so some of them are subnormal), 1e-38 and 1e-39.
SCALES = [1.0, 1e-18, 1e-19, 3e-20]
# It takes subnormal numbers for zeros, and which products oneDNN computes by it depends on the layout of the weight (docs/limits.md).
HAS_AMX = CPU.works and CPU.amx()
PRODUCTS = {
    "linear": (lambda x, w, b: F.linear(x, w, b), False),  # noqa: PLW0108
    "linear-without-bias": (lambda x, w, b: F.linear(x, w), False),
    "linear-of-a-batch": (lambda x, w, b: F.linear(x[None], w, b), False),
    "linear-of-a-vector": (lambda x, w, b: F.linear(x[0], w, b), False),
    "addmm": (lambda x, w, b: torch.addmm(b, x, w), True),
}


def bits(result):
    return result.contiguous().view(torch.int16)


def under(packing, call, monkeypatch):
    set_packing(packing, monkeypatch)
    hmp.cache.clear()
    hmp.convert(policy="hmp")
    with torch.no_grad():
        result = call()
    hmp.revert()
    return result


@pytest.mark.parametrize("packing", ["measured", "unmeasured"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("product", PRODUCTS)
def test_products(product, shape, packing, monkeypatch):
    call, turned = PRODUCTS[product]
    rows, inputs, outputs = shape
    keeps_subnormals = not HAS_AMX or (packing == "measured" and VERSION < (2, 15))
    for scale in SCALES if keeps_subnormals else SCALES[:1]:
        x = torch.randn(rows, inputs) * scale
        w = nn.Parameter(torch.randn((inputs, outputs) if turned else (outputs, inputs)) * scale)
        b = nn.Parameter(torch.randn(outputs) * scale * scale)
        plain = under("off", lambda: call(x, w, b), monkeypatch)  # noqa: B023
        found = under(packing, lambda: call(x, w, b), monkeypatch)  # noqa: B023
        assert torch.equal(bits(found), bits(plain)), scale


@pytest.mark.parametrize(
    ("product", "shape", "threads"),
    [
        pytest.param("linear", (1, 20480, 512), 1, id="linear, more inputs than one sum has in torch 2.15"),
        pytest.param("linear", (1, 11008, 64), 2, id="linear"),
        pytest.param("addmm", (1, 20480, 512), 1, id="addmm, more inputs than one sum has in torch 2.15"),
        pytest.param("addmm", (1, 11008, 64), 2, id="addmm, inputs split between two threads"),
        pytest.param("addmm", (1, 11008, 2048), 64, id="addmm, inputs split, and a part of the weight is tried"),
    ],
)
def test_products_of_many_inputs(product, shape, threads, monkeypatch):
    """Where oneDNN adds parts of a sum: which ones, differs between versions of torch."""
    call, turned = PRODUCTS[product]
    rows, inputs, outputs = shape
    w = nn.Parameter(torch.randn((inputs, outputs) if turned else (outputs, inputs)))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for _ in range(10):
            x, b = torch.randn(rows, inputs), nn.Parameter(torch.randn(outputs))
            plain = under("off", lambda: call(x, w, b), monkeypatch)  # noqa: B023
            found = under("measured", lambda: call(x, w, b), monkeypatch)  # noqa: B023
            assert torch.equal(bits(found), bits(plain))
    finally:
        torch.set_num_threads(before)


CONVOLUTIONS = {
    "3x3": ((2, 32, 7, 7), lambda: nn.Conv2d(32, 48, 3, padding=1)),
    "1x1": ((1, 64, 1, 1), lambda: nn.Conv2d(64, 64, 1)),
    "of-256-numbers": ((1, 16, 5, 5), lambda: nn.Conv2d(16, 16, 1)),
    "one-output": ((2, 64, 5, 5), lambda: nn.Conv2d(64, 1, 3)),
    "one-channel": ((2, 1, 15, 15), lambda: nn.Conv2d(1, 64, 3)),
    "deep": ((1, 2048, 3, 3), lambda: nn.Conv2d(2048, 16, 3)),
    "depthwise": ((1, 256, 9, 9), lambda: nn.Conv2d(256, 256, 3, padding=1, groups=256)),
    "3d": ((1, 16, 5, 6, 7), lambda: nn.Conv3d(16, 32, 3)),
}


@pytest.mark.parametrize("packing", ["measured", "unmeasured"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name, packing, monkeypatch):
    sizes, make = CONVOLUTIONS[name]
    last = torch.channels_last if len(sizes) == 4 else torch.channels_last_3d
    for scale in SCALES:
        conv, x = make().requires_grad_(False), torch.empty(sizes, memory_format=last).copy_(torch.randn(sizes) * scale)
        conv.weight.normal_().mul_(scale)
        conv.bias.normal_().mul_(scale).mul_(scale)
        plain = under("off", lambda: conv(x), monkeypatch)  # noqa: B023
        found = under(packing, lambda: conv(x), monkeypatch)  # noqa: B023
        assert torch.equal(bits(found), bits(plain)), scale
        assert found.stride() == plain.stride()


FLUSHING = """
import os, torch
from torch import nn
import habana_mp._core
from habana_mp import hmp

torch.set_num_threads(1)
assert torch.set_flush_denormal(True)
for shape in ((1, 64, 64), (1, 64, 65), (3, 4096, 1), (3, 96, 64), (40, 96, 64)):
    rows, inputs, outputs = shape
    for scale in (1e-18, 1e-19, 3e-20):
        torch.manual_seed(0)
        x, w = torch.randn(rows, inputs) * scale, nn.Parameter(torch.randn(outputs, inputs) * scale)
        results = []
        # Without a trial it is packed whatever the bits are; and without these instructions oneDNN keeps other subnormals of a packed weight.
        untried = [("on", False)] * ("avx512_bf16" in habana_mp._core.cast_variants())
        for packing, measures in (("off", False), ("on", True), *untried):
            os.environ["HABANA_MP_PACKED_WEIGHTS"] = packing
            habana_mp._core._testing.measure_choices(measures)
            hmp.cache.clear()
            hmp.convert(policy="hmp")
            with torch.no_grad():
                results.append(torch.nn.functional.linear(x, w).view(torch.int16))
            hmp.revert()
        assert all(torch.equal(results[0], each) for each in results), (shape, scale)
"""


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this CPU cannot take subnormals for zeros")
@pytest.mark.skipif(HAS_AMX, reason="AMX takes them for zeros, and other kernels of oneDNN do not")
def test_where_a_program_takes_subnormals_for_zeros():
    done = subprocess.run(
        [sys.executable, "-c", FLUSHING], capture_output=True, text=True, check=False, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr


def test_torch_leaves_onednn_out_where_we_do(monkeypatch):
    """The number of multiplications is torch's: oneDNN takes subnormals for zeros, and torch's own product does not."""
    if F.linear(torch.full((1, 64), 1e-19).to(BF16), torch.full((65, 64), 1e-20).to(BF16)).any():
        pytest.skip("oneDNN keeps subnormals on this CPU")
    w = nn.Parameter(torch.full((64, 64), 1e-20))
    result = under("unmeasured", lambda: F.linear(torch.full((1, 64), 1e-19), w), monkeypatch)
    assert result.all()
