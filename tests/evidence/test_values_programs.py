"""Programs of every kind inside ``hmp.report(values=True)`` and ``hmp.find_nonfinite``: they run as without, and figures stay right."""

from __future__ import annotations

import copy
import functools
import gc
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

from habana_mp import hmp

BF16 = torch.bfloat16


def compiled() -> None:
    torch.compile(nn.Linear(4, 4), backend="eager")(torch.ones(2, 4)).sum().backward()


def faked() -> None:
    with FakeTensorMode():
        torch.ones(3) * 2


def freed() -> None:
    x = torch.ones(1 << 20)
    x.untyped_storage().resize_(0)
    x.view(-1)


def sparse_gradient() -> None:
    weight = torch.randn(10, 4, requires_grad=True)
    F.embedding(torch.tensor([1, 2]), weight * 2, sparse=True).sum().backward()


def batched_gradients() -> None:
    x = torch.randn(4, 4, requires_grad=True)
    torch.autograd.grad(x.exp() * 2, x, torch.eye(16).view(16, 4, 4), is_grads_batched=True)


def inferred() -> None:
    model = nn.Linear(8, 8).bfloat16().requires_grad_(False)
    with torch.inference_mode():
        model(torch.randn(4, 8).bfloat16())


PROGRAMS = {
    "torch.compile": compiled,
    "fake tensors": faked,
    "a subclass": lambda: TwoTensor(torch.ones(3), torch.ones(3)) * 2,
    "freed storage": freed,
    "a sparse gradient": sparse_gradient,
    "batched gradients": batched_gradients,
    "inference mode": inferred,
    "vmap": lambda: torch.vmap(lambda a: (a * 0 + 1).log().sum())(torch.randn(3, 4)),
    "jvp": lambda: torch.func.jvp(torch.sin, (torch.ones(3),), (torch.ones(3),)),
    "float8": lambda: torch.randn(4).to(torch.float8_e4m3fn),
    "complex": lambda: torch.fft.fft(torch.randn(8)).abs(),
    "sparse": lambda: torch.eye(3).to_sparse() @ torch.ones(3, 1),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]) * 2,
    "empty": lambda: torch.randn(0, 4) @ torch.randn(4, 4),
    "checkpoint": lambda: (
        torch.utils.checkpoint.checkpoint(nn.Linear(4, 4), torch.ones(2, 4, requires_grad=True), use_reentrant=True)
        .sum()
        .backward()
    ),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_programs_run_as_without(program, capfd) -> None:
    torch._dynamo.reset()
    assert hmp.find_nonfinite(program) is None
    with hmp.autocast("cpu"), hmp.report(values=True) as report:
        program()
        torch.mm(torch.ones(2, 2), torch.ones(2, 2))
    assert any(row["op"] == "mm" for row in report.to_dict()["rows"])
    assert "Exception in RecordFunction" not in capfd.readouterr().err


def test_in_place_on_float32_with_a_low_operand() -> None:
    x, low = torch.ones(64), torch.ones(64, dtype=BF16)
    with hmp.report(values=True) as report:
        x.add_(low)
    error = report.local_error("add_")
    assert (float(error), error.largest) == (0, 0)
    row = next(row for row in report.to_dict()["rows"] if row["op"] == "add_")
    assert row["values"]["ran"]["reference_squares"] == 64 * 4


@pytest.mark.parametrize(
    "call", [lambda x: x.mul_(x), lambda x: torch.exp(x, out=x)], ids=["x.mul_(x)", "out= an input"]
)
def test_arguments_that_are_written_to_and_read(call) -> None:
    x = torch.randn(256, generator=torch.Generator().manual_seed(0)).bfloat16()
    with hmp.report(values=True) as report:
        call(x)
    row = next(row for row in report.to_dict()["rows"] if "values" in row)
    error = row["values"]["ran"]
    assert 0 < (error["squares"] / error["reference_squares"]) ** 0.5 < 0.005


def test_a_mask_of_large_numbers_is_not_compared() -> None:
    scores, mask = torch.randn(64).bfloat16(), torch.zeros(64).bfloat16()
    mask[3] = torch.finfo(BF16).min
    with hmp.report(values=True) as report:
        scores + mask * 1.0 + 0.1
    assert 0 < float(report.local_error("add")) < 0.01


def test_a_step_that_overflows_spoils_no_figures_of_others() -> None:
    weight = torch.randn(8, 8, requires_grad=True)
    with hmp.autocast("cpu", policy="hmp"), hmp.report(values=True) as report:
        for step in range(3):
            x = torch.randn(4, 8)
            if step == 1:
                x[0, 0] = torch.inf
            F.linear(F.linear(x, weight), weight).float().pow(2).mean().backward()
    assert report.error_share("linear") > 0
    assert report.edits()


def test_a_fused_optimizer_that_spoils_a_weight() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters(), eps=0.0, fused=True)

    def step() -> None:
        (model(torch.zeros(2, 4)) * 0).sum().backward()
        optimizer.step()

    found = hmp.find_nonfinite(step)
    assert model.weight.isnan().any()
    assert found is not None
    assert found.inner.startswith("aten::_fused_adam")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_memory_does_not_grow_with_steps_without_gradients() -> None:
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3))).requires_grad_(False)

    def resident() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    with hmp.autocast("cpu", policy="hmp"), hmp.report(values=True):
        for _ in range(20):
            model(torch.randn(2048, 64))
        before = resident()
        for _ in range(100):
            model(torch.randn(2048, 64))
        assert resident() - before < 30 << 20  # each step makes 1.5 MiB of them


def test_differences_go_when_the_block_ends() -> None:
    model = nn.Linear(64, 64)
    with hmp.autocast("cpu"), hmp.report(values=True) as report:
        kept = model(torch.randn(4, 64)).float().sum()
    kept.backward()
    with pytest.raises(RuntimeError, match="no backward pass was seen"):
        report.error_shares()
    with hmp.autocast("cpu"), hmp.report(values=True) as report:
        model(torch.randn(4, 64)).float().sum().backward()
    assert report.error_share() == 1


def test_a_search_inside_a_report_with_values_is_refused() -> None:
    with hmp.report(values=True), pytest.raises(RuntimeError, match=r"cannot run inside hmp\.report"):
        hmp.find_nonfinite(lambda: None)
    assert hmp.find_nonfinite(lambda: None) is None


def test_registered_partials_are_copied() -> None:
    op = hmp.register_op(functools.partial(torch.matmul), name="partial_product")

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.op = op

    assert copy.deepcopy(Net()).op is op
    assert copy.copy(op) is op
    with pytest.raises(TypeError, match="below @staticmethod"):
        hmp.register_op(staticmethod(lambda x: x))


COUNTED = """
import warnings
import torch
from habana_mp import hmp

calls = 0

def tanh(x):
    global calls
    calls += 1
    return torch.sin(x)

warnings.simplefilter("ignore")
library = torch.library.Library("aten", "IMPL")
library.impl("tanh", tanh, "CPU")
x = torch.ones(4, requires_grad=True)
with hmp.autocast("cpu", policy=hmp.Policy.from_ops(lower=["tanh"])), hmp.report(values=VALUES):
    torch.tanh(x * 1)
print(calls)
"""


@pytest.mark.parametrize("values", ["True", '"errors"'])
def test_each_call_runs_once_more(values) -> None:
    program = COUNTED.replace("VALUES", values)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "2\n", done.stderr


def test_a_report_that_ends_inside_of_a_call_is_not_asked_for_it():
    """What autograd saves is packed by a function of the program, which may do anything: the call then ends under another report."""
    x = torch.rand(8, 8, requires_grad=True)
    outer, inner = hmp.report(values=True), hmp.report(values=True)
    waiting = [outer]

    def pack(saved: torch.Tensor) -> torch.Tensor:
        while waiting:
            waiting.pop().__exit__(None, None, None)
            inner.__enter__()
        return saved

    outer.__enter__()
    with hmp.autocast("cpu", policy="balanced"):
        for op in (torch.exp, torch.sin, torch.tanh):
            op(x)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
            torch.mm(x, x)
    inner.__exit__(None, None, None)
    assert [row.op for row in outer.rows] == ["exp", "sin", "tanh"]
    assert "mm" not in [row.op for row in inner.rows]


def test_outputs_behind_a_reentrant_checkpoint_are_not_projected():
    block, x = nn.Linear(4, 4), torch.ones(2, 4, requires_grad=True)
    with hmp.report(values=True) as report, hmp.autocast("cpu", policy="hmp"):
        result = checkpoint(block, x, use_reentrant=True)
        with pytest.raises(RuntimeError, match=r"^outputs behind a reentrant checkpoint .* use_reentrant=False$"):
            report.project(result * 2)
        report.project(checkpoint(block, x, use_reentrant=False))
    assert report.errors()["outputs"] > 0
