"""torch.onnx.export: ONNX knows no op of habana_mp, and ONNX Runtime gives the same results."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import onnxruntime
import pytest
import torch
from torch import nn
from torch._inductor.utils import fresh_cache

from habana_mp import hmp

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own
FRONT_ENDS = {
    "convert": lambda dtype: hmp.convert(low_precision_type=dtype) and contextlib.nullcontext(),
    "autocast": lambda dtype: hmp.autocast("cpu", dtype),
}
front_ends = pytest.mark.parametrize("front_end", FRONT_ENDS.values(), ids=FRONT_ENDS)
grad_modes = pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])


@pytest.fixture(autouse=True)
def _revert():
    yield
    hmp.revert()


class Products(nn.Module):
    """Those whose weights the cache keeps."""

    def __init__(self):
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 32, 3), nn.Linear(32 * 36, 256)
        self.weight, self.bias = nn.Parameter(torch.randn(256, 64) / 16), nn.Parameter(torch.randn(64))

    def forward(self, x):
        x = torch.addmm(self.bias, self.linear(self.conv(x).flatten(1)), self.weight)
        return x @ self.weight.t()


def session(program: torch.onnx.ONNXProgram) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(program.model_proto.SerializeToString())


@front_ends
@grad_modes
def test_the_runtime_gives_the_results_of_torch(front_end, mode):
    """Before, the export raised ConversionError without gradients."""
    model, x = Products().eval(), torch.randn(2, 3, 8, 8)
    with front_end(torch.float16), mode():
        expected = model(x).detach()
        program = torch.onnx.export(model, (x,), verbose=False)
    assert {node.domain for node in program.model.graph} == {""}
    casts = [node for node in program.model.graph if node.op_type == "Cast"]
    assert casts
    (result,) = session(program).run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(result), expected, rtol=1e-2, atol=1e-2)


@front_ends
def test_a_program_of_torch_export_is_translated_later(front_end):
    """After the conversion and the region, too."""
    model, x = Products().eval(), torch.randn(2, 3, 8, 8)
    with front_end(torch.float16), torch.no_grad():
        exported, expected = torch.export.export(model, (x,)), model(x)
    assert "habana_mp.linear" in str(exported.graph)
    hmp.revert()
    (result,) = session(torch.onnx.export(exported, verbose=False)).run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(result), expected, rtol=1e-2, atol=1e-2)


def test_without_casts_the_file_is_float32():
    model, x = Products().eval(), torch.randn(2, 3, 8, 8)
    hmp.convert(low_precision_type=torch.float16)
    with hmp.disable_casts():
        program = torch.onnx.export(model, (x,), verbose=False)
    assert "Cast" not in {node.op_type for node in program.model.graph}


def test_onnxruntime_has_no_gemm_in_bfloat16():
    """What docs/how-to/export-and-onnx.md says of the CPU provider; float16 is its way."""
    model, x = nn.Sequential(nn.Linear(8, 8)).eval(), torch.randn(2, 8)
    hmp.convert()
    program = torch.onnx.export(model, (x,), verbose=False)
    with pytest.raises(Exception, match=r"NOT_IMPLEMENTED.*Gemm"):
        session(program)


def test_onnxruntime_refuses_a_norm_of_two_dtypes():
    """The same page: float32 weights and a float16 input. The preset balanced has layer_norm in float32."""
    model, x = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)).eval(), torch.randn(2, 8)
    hmp.convert(policy="torch-cpu", low_precision_type=torch.float16)
    program = torch.onnx.export(model, (x,), verbose=False)
    with pytest.raises(Exception, match=r"LayerNormalization.*bound to different types"):
        session(program)


PROGRAM = """
import torch
{first}
from habana_mp import hmp
model, x = torch.nn.Sequential(torch.nn.Linear(128, 128)).eval(), torch.randn(2, 128)
hmp.convert(low_precision_type=torch.float16)
with torch.no_grad():
    program = torch.onnx.export(model, (x,), verbose=False)
print(*(node.op_type for node in program.model.graph))
"""


@pytest.mark.parametrize("first", ["", "import torch.onnx._internal.exporter._decomp"], ids=["later", "earlier"])
def test_the_exporter_may_be_imported_earlier_or_later(first):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM.format(first=first)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert {"Cast", "Gemm"} <= {*done.stdout.split()}


@front_ends
def test_inductor_compiles_on_a_machine_of_ci(front_end, monkeypatch):
    """Where CI is set, Inductor refuses an op that torch's own table of decompositions has: ours stood there for ONNX's sake."""
    monkeypatch.setenv("CI", "true")
    model, x = nn.Sequential(nn.Linear(128, 128)).eval(), torch.randn(2, 128)
    torch.compiler.reset()
    with fresh_cache(), front_end(torch.bfloat16), torch.no_grad():
        assert torch.equal(torch.compile(model, fullgraph=True)(x), model(x))


WITH_NUMBERS = {
    "clamp": lambda x: x.float().round().clamp(-127, 127),
    "add": lambda x: x + 1,
    "mul": lambda x: x * 0.1,
    "sub": lambda x: 1 - x,
    "where": lambda x: torch.where(x > 0, x, 0),
}


@pytest.mark.parametrize("op", WITH_NUMBERS)
@front_ends
def test_ops_with_numbers(front_end, op):
    """Before torch 2.13 the exporter asks for the overload of each, and our kernel asked a fake tensor for its device, which it took for the op."""

    class Model(nn.Module):
        def forward(self, x):
            return WITH_NUMBERS[op](x)

    x = torch.randn(2, 4)
    with front_end(torch.float16), torch.no_grad():
        expected = Model()(x)
        program = torch.onnx.export(Model(), (x,), verbose=False)
    (result,) = session(program).run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(result), expected, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("title", ["weight_int8", "int8"])
def test_ops_in_8_bits_are_rounded_by_ops_of_onnx(title):
    """They were refused: nobody knew the ops inside."""
    model, x = Products().eval(), torch.randn(2, 3, 8, 8)
    policy = hmp.Policy.load("balanced").with_edits("+linear:" + title)
    with hmp.autocast("cpu", torch.float16, policy=policy), torch.no_grad():
        expected = model(x)
        program = torch.onnx.export(model, (x,), verbose=False)
    assert {node.domain for node in program.model.graph} == {""}
    assert "Round" in {node.op_type for node in program.model.graph}
    (result,) = session(program).run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(result), expected, rtol=1e-2, atol=1e-2)
