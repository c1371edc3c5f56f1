"""``hpu`` and ``habana`` as device names on a machine without such a device: they stand for another one, for the whole process.

How torch reads the names is src/hpu/hpu_device.h; what scripts find in Python beside it, `torch.hpu` and `x.hpu()` and
`torch.autocast("hpu")`, is habana_mp/_hpu/additions.py.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys

import torch

import habana_mp._core as _core
from habana_mp._convert.dynamo import drop_stale_graphs
from habana_mp._hpu import torch_hpu
from habana_mp._hpu.additions import additions
from habana_mp._hpu.compile_backend import register_backends, unregister_backends
from habana_mp._torch_private import COPIES

_patches = _core.PatchSet()

DEVICE_VARIABLE = "HABANA_MP_DEVICE"


def map_hpu(device: str = "cpu") -> bool:
    """Let "hpu" and "habana" stand for another device in all of torch, until ``unmap_hpu``; called again, for that one from then on.

    ``torch.device("hpu")`` then is a device that prints as hpu and equals the device that it stands for; tensors show where they are.

    Args:
        device: the type of a device that torch has here: "cpu", "cuda", "xpu", ...

    Returns:
        False where HPU is real (Habana's package is installed, or something else has registered ``torch.hpu``): nothing is touched.

    Raises:
        ValueError: a device that is no device type of torch, one with an index, or "hpu" itself.
        RuntimeError: a device that is not available here, or a build of torch whose parser of device names cannot be replaced.
    """
    _check(device)
    if is_real():
        return False
    _core.map_hpu(device)
    try:
        _patches.uninstall()  # before the new ones are made, which wrap the originals
        _patches.install(additions(device))
        for name in torch_hpu.NAMES:
            sys.modules[f"torch.{name}"] = torch_hpu
        # A copy of a device loses its name: copies are the device itself, as of a string.
        if COPIES.works:
            COPIES.shallow[torch.device] = COPIES.deep[torch.device] = lambda device, *_: device
        register_backends()
        _tag_graphs(f"hpu:{device} ")
    except BaseException:
        unmap_hpu()
        raise
    return True


def unmap_hpu() -> None:
    """Undo ``map_hpu``: every object of torch is the one that it was. Nothing happens where nothing is mapped."""
    if _core.hpu_mapped_to() is None:
        return
    _patches.uninstall()
    unregister_backends()
    for name in torch_hpu.NAMES:
        sys.modules.pop(f"torch.{name}", None)
    if COPIES.works:
        for copies in (COPIES.shallow, COPIES.deep):
            copies.pop(torch.device, None)
    _core.unmap_hpu()
    _tag_graphs("")


def hpu_device_type() -> str:
    """The device type that "hpu" stands for; while it is not mapped, what it is to stand for.

    That is the value of HABANA_MP_DEVICE; else the accelerator that torch finds, or the CPU.
    """
    found = torch.accelerator.current_accelerator(check_available=True)
    return _core.hpu_mapped_to() or os.environ.get(DEVICE_VARIABLE) or ("cpu" if found is None else found.type)


def map_chosen() -> bool:
    """``map_hpu`` for what "hpu" is to stand for. Errors name the variable, where it has chosen."""
    device = hpu_device_type()
    try:
        return map_hpu(device)
    except (ValueError, RuntimeError) as error:
        if os.environ.get(DEVICE_VARIABLE) != device:
            raise
        raise type(error)(f"{DEVICE_VARIABLE}: {error}") from None


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
    if not isinstance(device, str) or ":" in device or device in torch_hpu.NAMES:
        raise ValueError(f'the device for "hpu" must be a device type such as "cpu" or "cuda", not {device!r}')
    try:
        torch.device(device)
    except RuntimeError:
        raise ValueError(f"torch has no device type {device!r}; it has cpu, cuda, xpu, mps, ...") from None
    module = getattr(torch, device, None)
    if device != "cpu" and (module is None or not module.is_available()):
        raise RuntimeError(f"{device!r} is not available here: torch {torch.__version__} sees no such device")


def _tag_graphs(tag: str) -> None:
    """Graphs hold "hpu" as the script wrote it: compiled functions compile again, and the keys of the caches hold what it stands for."""
    from torch.compiler import config

    config.cache_key_tag = tag + re.sub(r"^hpu:\w+ ", "", config.cache_key_tag)
    drop_stale_graphs()
