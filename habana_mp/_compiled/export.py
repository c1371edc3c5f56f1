"""What torch.export needs: casts in what it records.

Before the dispatcher comes to our kernels, make_fx(pre_dispatch=True) has recorded the op (torch's own autocast regions are recorded as
nodes of the graph). So where one of its modes is about to see an op that the policy here lists, our kernel gets it first: the casts
that it makes, and the op after them, come to the mode in their turn.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

import habana_mp._core as _core
from habana_mp._scope.after_import import after_import
from habana_mp._torch_private import EXPORT, ONNX_OVERLOADS, ONNX_PROMOTION, mode_key


@functools.cache
def serve() -> None:
    """From now on, what is exported has its casts, and goes to ONNX with them."""
    if ONNX_OVERLOADS is not None:
        after_import(ONNX_PROMOTION, _find_overloads_without_casts)
    if not EXPORT.works:
        return
    torch_handle, pre_dispatch, ours = EXPORT.handle, EXPORT.pre_dispatch, EXPORT.key(_core.AUTOCAST_KEY)

    @functools.wraps(torch_handle)
    def handle(mode: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        key = None if mode_key(mode) != pre_dispatch else _key_first(op, ours, args, kwargs)
        if key is None:
            return torch_handle(mode, op, *args, **kwargs)
        EXPORT.put_mode(mode)
        try:
            return EXPORT.of(op, "run_at")(key, *args, **kwargs)
        finally:
            EXPORT.take_mode()

    setattr(*EXPORT.place("handle"), handle)


def _key_first(op: Any, ours: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Whose kernel gets the op before it is recorded: ours where the policy lists it, that of its parts where it lists these; else None."""
    if not EXPORT.included(ours) or EXPORT.excluded(ours) or op.namespace != "aten":
        return None  # no region here, or inside our kernel
    tensor = next((leaf for leaf in EXPORT.leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)), None)
    policy = None if tensor is None else _core.autocast_policy(tensor.device.type)
    overload = EXPORT.of(op, "overload")
    name = EXPORT.of(op, "schema").name.removeprefix("aten::") + (f".{overload}" if overload != "default" else "")
    if policy is None:
        return None
    if policy.resolve_overload(name).entry is not None:
        return ours if op.has_kernel_for_dispatch_key(ours) else None
    in_parts = _core.is_compound(name.partition(".")[0]) and op.has_kernel_for_dispatch_key(EXPORT.parts)
    return EXPORT.parts if in_parts else None


def _find_overloads_without_casts() -> None:
    """Its program is cast already. Where our kernel asks a fake tensor for its device, a mode sees that as an op."""
    if ONNX_OVERLOADS is None or not ONNX_OVERLOADS.works:
        return
    find = ONNX_OVERLOADS.find
    ours = ONNX_OVERLOADS.keys(ONNX_OVERLOADS.key(_core.AUTOCAST_KEY))

    @functools.wraps(find)
    def find_overload(*args: Any) -> Any:
        with ONNX_OVERLOADS.without(ours):
            return find(*args)

    setattr(*ONNX_OVERLOADS.place("find"), find_overload)
