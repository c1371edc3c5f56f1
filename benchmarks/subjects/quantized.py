"""Linear layers in 8 bits by other packages, as baselines for linear.py. Each is there if its package is installed."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

Product = Callable[[torch.Tensor], Any]


def onnxruntime_dynamic(weight: torch.Tensor) -> Product:
    """Weights of 8 bits with a scale for each output; the input, in float32, is rounded to 8 bits with one scale for all rows."""
    import onnx
    import onnxruntime
    from onnx import helper, numpy_helper
    from onnxruntime.quantization import QuantType, quantize_dynamic

    outputs, inputs = weight.shape
    x, y = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["rows", size])
        for name, size in (("x", inputs), ("y", outputs))
    )
    numbers = numpy_helper.from_array(weight.detach().t().contiguous().numpy(), "weight")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "weight"], ["y"])], "linear", [x], [y], [numbers])
    opset = helper.make_opsetid("", 17)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Each session has threads of its own. They would spin while the next one computes: 64 rows on two threads took three times as long or more.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "linear.onnx"
        model = helper.make_model(graph, opset_imports=[opset], ir_version=10)
        quantize_dynamic(model, path, per_channel=True, weight_type=QuantType.QInt8)
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda x: session.run(None, {"x": x.numpy()})[0]


def openvino_dynamic(weight: torch.Tensor) -> Product:
    """Weights of 8 bits with a scale for each output, as its compression makes them; the input is rounded to 8 bits in groups of 32."""
    import openvino
    from openvino import opset13 as ops

    weight = weight.detach()
    scales = weight.abs().amax(1, keepdim=True) / 127
    numbers = (weight / scales).round().to(torch.int8)
    x = ops.parameter([-1, weight.shape[1]], openvino.Type.f32)
    weights = ops.multiply(ops.convert(ops.constant(numbers.numpy()), openvino.Type.f32), ops.constant(scales.numpy()))
    model = openvino.Model([ops.matmul(x, weights, False, True)], [x])
    options = {
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "INFERENCE_PRECISION_HINT": "bf16",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 32,
        "PERFORMANCE_HINT": "LATENCY",
    }
    request = openvino.Core().compile_model(model, "CPU", options).create_infer_request()
    return lambda x: request.infer([x.numpy()], share_inputs=True, share_outputs=True)[0]


def torchao_linear(config: str, *, compiled: bool) -> Callable[[torch.Tensor], Product]:
    """Of a linear layer in bfloat16."""

    def make(weight: torch.Tensor) -> Product:
        from torchao import quantization

        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=torch.bfloat16)
        layer.weight = nn.Parameter(weight.detach().to(torch.bfloat16))
        quantization.quantize_(layer, getattr(quantization, config)())
        return torch.compile(layer) if compiled else layer

    return make


_MAKERS: dict[str, tuple[str, Callable[[torch.Tensor], Product]]] = {
    "ONNX Runtime, int8": ("onnxruntime", onnxruntime_dynamic),
    "OpenVINO, int8": ("openvino", openvino_dynamic),
    **{
        f"torchao, {way}, {name}": ("torchao", torchao_linear(config, compiled=way == "compiled"))
        for way in ("eager", "compiled")
        for name, config in (
            ("weight int8", "Int8WeightOnlyConfig"),
            ("int8", "Int8DynamicActivationInt8WeightConfig"),
        )
    },
}
NAMES = tuple(_MAKERS)
# What the input is in before the clock is read. After a cast, threads of torch would spin beside those of the package: OpenVINO took three times as long.
INPUT = {name: torch.bfloat16 if name.startswith("torchao") else torch.float32 for name in NAMES}
# The lists of ours that round as each does. OpenVINO rounds inputs in groups: its error is between those of the two lists.
LIKE = {
    name: ("weight_int8", "int8") if name.startswith("OpenVINO") else (("weight_int8" if "weight" in name else "int8"),)
    for name in NAMES
}


def products(weights: list[nn.Parameter]) -> Iterator[tuple[str, list[Product]]]:
    """By name, of each weight."""
    for name, (package, make) in _MAKERS.items():
        if importlib.util.find_spec(package):
            yield name, [make(weight) for weight in weights]
