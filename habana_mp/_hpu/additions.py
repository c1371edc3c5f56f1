"""What torch is given in Python while "hpu" stands for another device: names that it lacks, and functions that look at a device's type.

Each is put where it belongs, and taken away again, by habana_mp/_hpu/mapping.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed

import habana_mp._core as _core
from habana_mp._autocast.context import autocast
from habana_mp._cast import dtype_named
from habana_mp._hpu import cpu_device, torch_hpu
from habana_mp._hpu.torch_hpu import Device, plain
from habana_mp._torch_private import LOAD

_LAST = 1000  # in torch.load's list of who restores


def additions(device: str) -> Iterator[tuple[Any, str, Any]]:
    """Rows of (owner, name, value), for a device type that "hpu" already stands for."""
    for name in torch_hpu.NAMES:
        yield torch, name, torch_hpu
    if hasattr(torch.Tensor, f"is_{device}"):
        yield torch.Tensor, "is_hpu", getattr(torch.Tensor, f"is_{device}")
    own = device in ("cuda", "xpu")
    to_hpu = None if own else _core.hpu_method(torch.Tensor, torch.device("hpu"), _tensor_to_hpu)
    yield torch.Tensor, "hpu", to_hpu or getattr(torch.Tensor, device)
    yield torch.nn.Module, "hpu", _module_to_hpu
    yield torch.autocast, "__init__", _init_autocast
    custom_fwd = _around(torch.amp.custom_fwd, _custom_fwd)
    yield torch.amp, "custom_fwd", custom_fwd
    yield torch.amp.autocast_mode, "custom_fwd", custom_fwd
    if LOAD.works:
        habana = functools.partial(LOAD.restore, "habana")  # "hpu" torch has
        yield *LOAD.place("registry"), [*LOAD.registry, (_LAST, _no_tag, habana)]
    if device == "cpu":
        yield torch.Tensor, "pin_memory", _around(torch.Tensor.pin_memory, _pin_memory)
        yield torch.Tensor, "record_stream", _around(torch.Tensor.record_stream, _record_stream)
    if torch.distributed.is_available():
        from torch.distributed import distributed_c10d
        from torch.distributed.device_mesh import DeviceMesh

        yield DeviceMesh, "__init__", _around(DeviceMesh.__init__, _init_mesh)
        if device == "cpu":
            ddp = torch.nn.parallel.DistributedDataParallel
            yield ddp, "__init__", _around(ddp.__init__, _init_ddp)

        init = _around(distributed_c10d.init_process_group, _init_process_group)
        yield distributed_c10d, "init_process_group", init
        yield torch.distributed, "init_process_group", init


def _hpu_device(device: Device) -> torch.device:
    if isinstance(device, int):
        return torch.device("hpu", device)
    return torch.device("hpu" if device is None else device)


def _tensor_to_hpu(
    self: torch.Tensor,
    device: Device = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format = torch.preserve_format,
) -> torch.Tensor:
    return self.to(_hpu_device(device), non_blocking=non_blocking, memory_format=memory_format)


def _module_to_hpu(self: torch.nn.Module, device: Device = None) -> torch.nn.Module:
    """Move parameters and buffers to the device that "hpu" stands for."""
    return self.to(_hpu_device(device))


def _around(original: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """What takes the place of a function of torch: ``function``, which is given that one first."""

    @functools.wraps(original)
    def around(*args: Any, **kwargs: Any) -> Any:
        return function(original, *args, **kwargs)

    return around


def _pin_memory(original: Callable[..., Any], tensor: torch.Tensor, device: Device = None) -> torch.Tensor:
    # Between CPU and CPU nothing is copied that pages could hold up.
    return original(tensor) if device is None and torch.accelerator.is_available() else tensor


def _record_stream(original: Callable[..., Any], tensor: torch.Tensor, stream: Any) -> None:
    # The stream of CPU is none of torch's, and no memory is given back before its work has ended.
    if not isinstance(stream, cpu_device.Stream):
        original(tensor, stream)


def _init_process_group(original: Callable[..., Any], *args: Any, device_id: Device = None, **kwargs: Any) -> None:
    device_id = plain(device_id)
    # Torch refuses CPU here, to which no process need be bound.
    if isinstance(device_id, torch.device) and device_id.type == "cpu":
        device_id = None
    original(*args, device_id=device_id, **kwargs)


def _init_mesh(original: Callable[..., Any], self: Any, /, device_type: str, *args: Any, **kwargs: Any) -> None:
    # DTensor asks the module of the type what it can do, and has ways of its own for "hpu".
    original(self, _plain_type(device_type), *args, **kwargs)


def _init_ddp(original: Callable[..., Any], self: Any, /, module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
    # A script has one Gaudi for each process, and names it. Torch refuses that for CPU, of which there is one.
    kwargs.pop("device_ids", None), kwargs.pop("output_device", None)
    original(self, module, None, None, *args[2:], **kwargs)


def _custom_fwd(original: Callable[..., Any], fwd: Any = None, *, device_type: str, **kwargs: Any) -> Any:
    # It casts the tensors whose device has that type.
    return original(fwd, device_type=_plain_type(device_type), **kwargs)


def _plain_type(device_type: str) -> str:
    return str(plain(device_type).type) if device_type in torch_hpu.NAMES else device_type


def _no_tag(_: Any) -> None:
    """The tag of a storage, for torch.save: another entry of the registry returns it."""


class _HpuAutocast(autocast, torch.autocast):
    """``torch.autocast("hpu")`` while that stands for another device: the region of ``hmp.autocast("hpu")``."""

    def __init__(
        self,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        autocast.__init__(self, "hpu", dtype, enabled, cache_enabled)
        # The attributes of torch.autocast.
        self.device = device_type
        self.fast_dtype = torch.bfloat16 if dtype is None else getattr(torch, dtype_named(dtype) or "", dtype)
        self._enabled = enabled
        self._cache_enabled = cache_enabled is not False

    # The decorated function holds the instance itself, as torch.compile knows it.
    __call__ = torch.autocast.__call__


_init_of_torch = torch.autocast.__init__


@functools.wraps(_init_of_torch)
def _init_autocast(self: torch.autocast, device_type: Any, *args: Any, **kwargs: Any) -> None:
    # Of a class of somebody's own its __init__ decides. Not by a __new__ of the class: Python cannot take one away again.
    named = (
        isinstance(device_type, str) and device_type.partition(":")[0] in torch_hpu.NAMES
    )  # torch takes an index, too
    if named and type(self).__module__ == torch.autocast.__module__:
        self.__class__ = _HpuAutocast
        _HpuAutocast.__init__(self, device_type, *args, **kwargs)  # type: ignore[arg-type]
    else:
        _init_of_torch(self, device_type, *args, **kwargs)
