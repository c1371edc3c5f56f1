"""torch.compile on the late device. Inductor generates its C++ for the CPU, and each kernel is queued on the current stream, as an op that writes to
its arguments. ``in_graphs`` is what mode="reduce-overhead" is on CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from capture import capture
from torch._dynamo.device_interface import CpuInterface, register_interface_for_device
from torch._inductor.codegen.common import DeviceOpOverrides, register_backend_for_device, register_device_op_overrides
from torch._inductor.codegen.cpp import CppScheduling
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
from torch._inductor.compile_fx import compile_fx, compile_fx_inner

_KERNELS: list[Callable[..., None]] = []
_LIBRARY = torch.library.Library("late_compiler", "DEF")
_LIBRARY.define("kernel(Tensor(a!)[] tensors, int number) -> ()")
_LIBRARY.impl("kernel", lambda tensors, number: _KERNELS[number](*tensors), "CPU")


def queued(kernel: Callable[..., None], *tensors: torch.Tensor) -> None:
    """Generated code calls it in place of the kernel."""
    if kernel not in _KERNELS:
        _KERNELS.append(kernel)
    torch.ops.late_compiler.kernel(tensors, _KERNELS.index(kernel))


class _Wrapper(PythonWrapperCodegen):
    """The code that calls the kernels."""

    @staticmethod
    def create(*args: Any, **kwargs: Any) -> PythonWrapperCodegen:
        made = PythonWrapperCodegen.create(*args, **kwargs)
        return _Wrapper() if type(made) is PythonWrapperCodegen else made

    def write_header(self) -> None:
        super().write_header()
        self.header.writeline("from late_compiler import queued")

    def _generate_kernel_call_helper(self, kernel_name: str, call_args: Any, **_: Any) -> None:
        self.writeline(f"queued({kernel_name}, {', '.join(map(str, call_args))})")


class _Overrides(DeviceOpOverrides):
    def import_get_raw_stream_as(self, name: str) -> str:
        return ""

    def device_guard(self, device_idx: int) -> str:
        return f"torch.accelerator.device_index({device_idx})"


class _Interface(CpuInterface):
    """How sums are split is as on the CPU."""

    Event = torch.Event
    current_device = staticmethod(torch.accelerator.current_device_index)
    set_device = staticmethod(torch.accelerator.set_device_index)
    current_stream = staticmethod(torch.accelerator.current_stream)
    synchronize = staticmethod(torch.accelerator.synchronize)


class _Captured:
    """Captured at the first call; each call copies what is elsewhere than then, replays, and copies the results."""

    def __init__(self, compiled: Callable[[list[Any]], Sequence[Any]]) -> None:
        self._boxed_call = True  # it may empty the list that it is given
        self._compiled = compiled
        self._graph: Any = None

    @torch.no_grad()
    def __call__(self, inputs: list[Any]) -> list[Any]:
        if self._graph is None:
            self._inputs = list(inputs)
            self._graph, self._outputs = capture("late", lambda: self._compiled(list(self._inputs)), warm_ups=1)
        for kept, given in zip(self._inputs, inputs):
            if isinstance(given, torch.Tensor) and given.data_ptr() != kept.data_ptr():
                kept.copy_(given)
        inputs.clear()
        self._graph.replay()
        return [each.clone() if isinstance(each, torch.Tensor) else each for each in self._outputs]


def in_graphs(module: Any, inputs: Sequence[Any]) -> Any:
    """A backend of torch.compile."""
    return compile_fx(
        module, inputs, inner_compile=lambda *args, **kwargs: _Captured(compile_fx_inner(*args, **kwargs))
    )


for _device in ("late", "late:0", "late:1"):
    register_interface_for_device(_device, _Interface)
register_backend_for_device("late", CppScheduling, _Wrapper)
register_device_op_overrides("late", _Overrides())
# Of a device that is not the CPU Inductor expects Triton, and its loops.
torch._inductor.config.cuda_backend = "cpp"
if hasattr(torch._inductor.config, "loop_reindexing_after_fusion"):  # since torch 2.13
    torch._inductor.config.loop_reindexing_after_fusion = False
torch._inductor.config.loop_ordering_after_fusion = False
