"""``hpu`` and ``habana`` as device names on a machine without such a device: they stand for another one, for the whole process.

How torch reads the names is src/torch/hpu_device.h. Here is what Gaudi's scripts find in Python beside it: `torch.hpu`, `x.is_hpu`,
`x.hpu()`, `model.hpu()`, and `torch.autocast("hpu")` as a region with the lists of Gaudi.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from habana_mp import _core, _hpu
from habana_mp._autocast import autocast
from habana_mp._hpu import Device, plain

# (owner, name, what its __dict__ held): what torch is given, in order.
_before: list[tuple[Any, str, Any]] = []
_INHERITED = object()
_LAST = 1000  # in torch.load's list of who restores


def map_hpu(device: str = "cpu") -> bool:
    """Let "hpu" and "habana" stand for another device in all of torch, until ``unmap_hpu``; called again, for that one from then on.

    ``torch.device("hpu")`` then is a device that says hpu and equals the device that it stands for; tensors say where they are.

    Args:
        device: the type of a device that torch has here: "cpu", "cuda", "xpu", ...

    Returns:
        False where HPU is real (Habana's package is installed, or something else has registered ``torch.hpu``): nothing is touched.

    Raises:
        ValueError: a device that is no device type of torch, one with an index, or "hpu" itself.
        RuntimeError: a device that is not available here, or a build of torch that cannot be told.
    """
    _check(device)
    if is_real():
        return False
    first = _core.hpu_mapped_to() is None
    _core.map_hpu(device)
    if not first:
        _restore()
    for owner, name, value in _additions(device):
        _before.append((owner, name, vars(owner).get(name, _INHERITED)))
        setattr(owner, name, value)
    for name in _hpu.NAMES:
        sys.modules[f"torch.{name}"] = _hpu
    # A copy of a device loses its name: copies are the device itself, as of a string.
    copy._copy_dispatch[torch.device] = copy._deepcopy_dispatch[torch.device] = _itself  # type: ignore[attr-defined]
    return True


def unmap_hpu() -> None:
    """Undo ``map_hpu``: every object of torch is the one that it was. Nothing happens where nothing is mapped."""
    if _core.hpu_mapped_to() is None:
        return
    _restore()
    for name in _hpu.NAMES:
        del sys.modules[f"torch.{name}"]
    del copy._copy_dispatch[torch.device], copy._deepcopy_dispatch[torch.device]  # type: ignore[attr-defined]
    _core.unmap_hpu()


def is_real() -> bool:
    """Whether there is HPU support of somebody else's in this process."""
    if _core.hpu_mapped_to() is not None:
        return False
    if hasattr(torch, "hpu"):
        return True
    try:
        spec = importlib.util.find_spec("habana_frameworks")
    except ValueError:  # a module that somebody made by hand
        return True
    return spec is not None and not type(spec.loader).__module__.startswith("habana_mp")


def _check(device: object) -> None:
    if not isinstance(device, str) or ":" in device or device in _hpu.NAMES:
        raise ValueError(f'"hpu" stands for a device type such as "cpu" or "cuda", not for {device!r}')
    try:
        torch.device(device)
    except RuntimeError:
        raise ValueError(f"torch has no device type {device!r}; it has cpu, cuda, xpu, mps, ...") from None
    module = getattr(torch, device, None)
    if device != "cpu" and (module is None or not module.is_available()):
        raise RuntimeError(f"{device!r} is not available here: torch {torch.__version__} sees no such device")


def _restore() -> None:
    while _before:
        owner, name, before = _before.pop()
        if before is _INHERITED:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def _additions(device: str) -> Iterator[tuple[Any, str, Any]]:
    for name in _hpu.NAMES:
        yield torch, name, _hpu
    if hasattr(torch.Tensor, f"is_{device}"):
        yield torch.Tensor, "is_hpu", getattr(torch.Tensor, f"is_{device}")
    yield torch.Tensor, "hpu", _tensor_to_hpu
    yield torch.nn.Module, "hpu", _module_to_hpu
    yield torch.autocast, "__new__", _new_autocast
    custom_fwd = _custom_fwd(torch.amp.custom_fwd)
    yield torch.amp, "custom_fwd", custom_fwd
    yield torch.amp.autocast_mode, "custom_fwd", custom_fwd
    registry = torch.serialization._package_registry
    habana = functools.partial(torch.serialization._deserialize, "habana")  # "hpu" torch has
    yield torch.serialization, "_package_registry", [*registry, (_LAST, _no_tag, habana)]
    yield FakeTensorMode, "avoid_device_init", _avoid_device_init(vars(FakeTensorMode)["avoid_device_init"])
    if device == "cpu":
        yield torch.Tensor, "pin_memory", _pinned(torch.Tensor.pin_memory)
    if torch.distributed.is_available():
        from torch.distributed import distributed_c10d

        init = _init_process_group(distributed_c10d.init_process_group)
        yield distributed_c10d, "init_process_group", init
        yield torch.distributed, "init_process_group", init


def _itself(device: torch.device, *_: Any) -> torch.device:
    return device


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
    """The tensor on the device that "hpu" stands for."""
    return self.to(_hpu_device(device), non_blocking=non_blocking, memory_format=memory_format)


def _module_to_hpu(self: torch.nn.Module, device: Device = None) -> torch.nn.Module:
    """Move parameters and buffers to the device that "hpu" stands for."""
    return self.to(_hpu_device(device))


def _pinned(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(original)
    def pin_memory(self: torch.Tensor, device: Device = None) -> torch.Tensor:
        # Between CPU and CPU nothing is copied that pages could hold up.
        if device is None and torch.accelerator.is_available():
            return original(self)
        return self

    return pin_memory


def _init_process_group(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init_process_group(*args: Any, device_id: Device = None, **kwargs: Any) -> None:
        device_id = plain(device_id)
        # Torch refuses CPU here, to which no process need be bound.
        if isinstance(device_id, torch.device) and device_id.type == "cpu":
            device_id = None
        original(*args, device_id=device_id, **kwargs)

    return init_process_group


def _no_tag(_: Any) -> None:
    """Where a storage is, for torch.save: others say it."""


def _avoid_device_init(original: property) -> property:
    module: Any = fake_tensor

    def avoid_device_init(self: FakeTensorMode) -> bool:
        if torch.xpu._is_compiled():
            return bool(original.__get__(self))
        # As torch's own, which takes a torch.hpu for a device beside the others.
        return not (torch.cuda.is_available() or module._is_privateuse1_backend_available())

    return property(avoid_device_init)


def _custom_fwd(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def custom_fwd(fwd: Any = None, *, device_type: str, **kwargs: Any) -> Any:
        # It casts the tensors whose device has that type.
        to = torch.device(device_type) if device_type in _hpu.NAMES else None
        return original(fwd, device_type=device_type if to is None else plain(to).type, **kwargs)

    return custom_fwd


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
        # What torch.autocast says of itself.
        self.device = device_type
        self.fast_dtype = torch.bfloat16 if dtype is None else dtype
        self._enabled = enabled
        self._cache_enabled = cache_enabled is not False

    # The instance itself stands in the decorated function, as torch.compile knows it.
    __call__ = torch.autocast.__call__


@functools.wraps(torch.autocast.__init__)
def _new_autocast(cls: type[torch.autocast], device_type: Any = None, *args: Any, **kwargs: Any) -> torch.autocast:
    # Of a class of somebody's own its __init__ decides.
    if device_type in _hpu.NAMES and cls.__module__ == torch.autocast.__module__:
        return _HpuAutocast(device_type, *args, **kwargs)
    return object.__new__(cls)
