"""Steps with tensors whose numbers are not at their address: no instrument reads there (D50). Each case runs in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import warnings

import torch
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_map_only

from habana_mp import hmp

warnings.simplefilter("ignore")


class Wrapper(torch.Tensor):
    # A size and an address that is null. It does not say which tensors it wraps.
    @staticmethod
    def __new__(cls, inner, requires_grad=False):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, requires_grad=requires_grad)

    def __init__(self, inner, requires_grad=False):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
        result = op(*tree_map_only(Wrapper, lambda each: each.inner, args), **(kwargs or {}))
        if op._schema.is_mutable:
            return args[0]
        return result if op is torch.ops.aten.log.default else tree_map_only(torch.Tensor, Wrapper, result)


def written_wrapper():
    wrapper = Wrapper(torch.zeros(8))
    return lambda: wrapper.add_(1), lambda: wrapper.inner


def wrapped_loss():
    return lambda: Wrapper(torch.ones(8), requires_grad=True).mul(2).sum().backward(), None


def plain_of_wrapper():
    wrapper = Wrapper(-torch.ones(8))
    return lambda: wrapper.log(), None


def given_back():
    weight, runs = torch.ones(512, 4, requires_grad=True), []

    def step():
        runs.append(1)
        x = torch.tensor([[float(len(runs))] * 512])
        y = torch.mm(x, weight)
        x.untyped_storage().resize_(0)
        return y

    return step, None


def fake():
    with FakeTensorMode():
        x, y = torch.ones(8), torch.ones(8)
    return lambda: x.add_(y).mul(2), None


def meta():
    x = torch.ones(8, device="meta")
    return lambda: x.add_(1).mul(2), None


def sparse():
    x = torch.eye(4).to_sparse()
    return lambda: x.neg_().to_dense().exp(), lambda: x.to_dense()


def nested():
    x = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
    return lambda: x.mul_(2).add(x), lambda: x.unbind()[0]


def quantized():
    x = torch.quantize_per_tensor(torch.ones(8), 0.1, 0, torch.quint8)
    return lambda: torch.relu_(x).dequantize(), None


def mkldnn():
    x = torch.ones(8).to_mkldnn()
    return lambda: x.add_(x).to_dense(), lambda: x.to_dense()


def vmapped():
    x = torch.ones(4, 3)
    return lambda: torch.func.vmap(torch.func.grad(lambda row: (row * row).sum()))(x), None


def empty():
    x = torch.ones(0, 4)
    return lambda: torch.mm(x.add_(1), torch.ones(4, 3)).sum(), None


def measured():
    with hmp.autocast("cpu", policy="hmp"), hmp.report(values=True):
        step()


step, state = globals()[sys.argv[1]]()
before = state and state().clone()
hmp.compare(step, None, "hmp")
assert state is None or torch.equal(before, state()), "compare has changed it"
hmp.find_nonfinite(step)
measured()
print("done")
"""

CASES = [
    "written_wrapper",
    "wrapped_loss",
    "plain_of_wrapper",
    "given_back",
    "fake",
    "meta",
    "sparse",
    "nested",
    "quantized",
    "mkldnn",
    "vmapped",
    "empty",
]


@pytest.mark.parametrize("case", CASES)
def test_no_instrument_reads_numbers_that_are_not_there(case: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, case], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
