"""Modes of torch under convert: function modes, dispatch modes, devices, profilers, anomaly mode."""

import torch
import torch.nn.attention.bias
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from habana_mp import hmp

BF16, FP32 = torch.bfloat16, torch.float32
A = torch.linspace(-1, 1, 16).view(4, 4)


class TestModes:
    def test_function_mode_sees_what_stands_in_torch(self):
        seen = []

        class Mode(TorchFunctionMode):
            def __torch_function__(self, func, types, args=(), kwargs=None):
                seen.append(func)
                return func(*args, **(kwargs or {}))

        mm, linear, softmax = torch.mm, F.linear, F.softmax
        hmp.convert()
        with Mode():
            results = [torch.mm(A, A), F.linear(A, A), F.softmax(A.bfloat16(), -1)]
        assert [t.dtype for t in results] == [BF16, BF16, FP32]
        assert [function in seen for function in (mm, linear, softmax)] == [True, True, True]
        assert [[f for f in seen if f is function] != [] for function in (torch.mm, F.linear, F.softmax)] == [True] * 3

    def test_function_mode_that_replaces_an_op(self):
        class Mode(TorchFunctionMode):
            def __torch_function__(self, func, types, args=(), kwargs=None):
                return "replaced" if func is torch.mm else func(*args, **(kwargs or {}))

        hmp.convert()
        with Mode():
            assert torch.mm(A, A) == "replaced"
            assert torch.bmm(A[None], A[None]).dtype == BF16

    def test_function_mode_and_ops_in_8_bits(self):
        """Under any mode, that of torch.device too, weights were rounded to bfloat16 before."""
        seen = []

        class Mode(TorchFunctionMode):
            def __torch_function__(self, func, types, args=(), kwargs=None):
                seen.append(func)
                return func(*args, **(kwargs or {}))

        x, places = torch.randn(8, 96), torch.arange(6)
        linear, table = nn.Linear(96, 64), nn.Parameter(torch.randn(50, 24))
        images, kernel, matrix = (
            torch.randn(2, 3, 8, 8),
            nn.Parameter(torch.randn(8, 3, 3, 3)),
            nn.Parameter(torch.randn(96, 8)),
        )
        calls = {
            "linear": lambda: linear(x),
            "conv2d": lambda: F.conv2d(images, kernel),
            "matmul": lambda: x @ matrix,
            "embedding": lambda: F.embedding(places, table),
        }
        hmp.convert(policy=hmp.Policy.from_ops(weight_int8=[*calls]))
        with torch.no_grad():
            expected = [call() for call in calls.values()]
            for mode in (Mode(), torch.device("cpu")):
                with mode:
                    assert all(map(torch.equal, expected, (call() for call in calls.values())))
        assert F.linear in seen
        assert torch.conv2d in seen

    def test_dispatch_mode_sees_the_casts(self):
        seen = []

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                seen.append(func._schema.name.removeprefix("aten::"))
                return func(*args, **(kwargs or {}))

        hmp.convert()
        with Mode():
            out = torch.mm(A, A.t())
        assert (out.dtype, seen) == (BF16, ["_to_copy", "t", "_to_copy", "mm"])  # t is in the lower list too

    def test_default_device(self):
        hmp.convert()
        try:
            torch.set_default_device("meta")
            layer = nn.Linear(4, 4)
            out = layer(torch.ones(2, 4))
        finally:
            torch.set_default_device(None)
        assert (layer.weight.device.type, out.device.type, out.dtype) == ("meta", "meta", BF16)

    def test_device_context(self):
        with torch.device("meta"):
            hmp.convert()
            assert torch.ones(2, 2).device.type == "meta"
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == BF16
            hmp.revert()
            assert torch.ones(2, 2).device.type == "meta"

    def test_flop_counter(self):
        from torch.utils.flop_counter import FlopCounterMode

        hmp.convert()
        with FlopCounterMode(display=False) as counter:
            torch.mm(A, A)
        assert counter.get_total_flops() == 2 * 4**3

    def test_profiler(self):
        hmp.convert()
        with torch.profiler.profile() as profile:
            torch.mm(A, A)
        assert "aten::mm" in {event.key for event in profile.key_averages()}

    def test_anomaly_mode(self):
        hmp.convert()
        x = A.clone().requires_grad_()
        with torch.autograd.set_detect_anomaly(True):
            (x @ x).sum().backward()
        assert x.grad.dtype == FP32

    def test_deterministic_algorithms(self):
        hmp.convert()
        torch.use_deterministic_algorithms(True)
        try:
            assert (A @ A).dtype == BF16
        finally:
            torch.use_deterministic_algorithms(False)
