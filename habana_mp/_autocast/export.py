"""What torch.export needs: casts in what it records.

Before the dispatcher comes to our kernels, make_fx(pre_dispatch=True) has recorded the op (torch's own autocast regions are recorded as
nodes of the graph). So where one of its modes is about to see an op that the policy here lists, our kernel gets it first: the casts
that it makes, and the op after them, come to the mode in their turn.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

import habana_mp._core as _core

_library_utils: Any = torch._library.utils
_torch_handle = _library_utils.handle_dispatch_mode
_PRE_DISPATCH = torch._C.DispatchKey.PreDispatch
_OURS = torch._C._dispatch_key_parse(_core.AUTOCAST_KEY)


@functools.wraps(_torch_handle)
def _handle(mode: Any, op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    if getattr(mode, "_dispatch_key", None) != _PRE_DISPATCH or not _listed(op, args, kwargs):
        return _torch_handle(mode, op, *args, **kwargs)
    torch._ops._set_mode_pre_dispatch(mode)  # type: ignore[no-untyped-call]
    try:
        return op._op_dk(_OURS, *args, **kwargs)
    finally:
        torch._ops._pop_mode_from_pre_dispatch()  # type: ignore[no-untyped-call]


def _listed(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    tls = torch._C
    if not tls._dispatch_tls_is_dispatch_key_included(_OURS) or tls._dispatch_tls_is_dispatch_key_excluded(_OURS):
        return False  # no region here, or inside our kernel
    if op.namespace != "aten" or not op.has_kernel_for_dispatch_key(_OURS):
        return False
    tensor = next((leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)), None)
    policy = None if tensor is None else _core.autocast_policy(tensor.device.type)
    name = op._schema.name.removeprefix("aten::") + (f".{op._overloadname}" if op._overloadname != "default" else "")
    return policy is not None and policy.resolve_overload(name)[2]


def record_casts() -> None:
    """From now on, what is exported has its casts."""
    _library_utils.handle_dispatch_mode = _handle
