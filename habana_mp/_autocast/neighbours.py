"""Places of torch that regions of autocast must reach besides the dispatcher."""

from __future__ import annotations

import functools

import torch

import habana_mp._core as _core
from habana_mp._scope import checkpointing


def prepare() -> None:
    """What regions need without a conversion too: activation checkpointing recomputes under the region of its forward, and the fused
    encoder layer of inference, which no policy can see into, is not taken inside.
    """
    checkpointing.serve()
    if torch.backends.mha.get_fastpath_enabled is not _fastpath_enabled:
        torch.backends.mha.get_fastpath_enabled = _fastpath_enabled
        _pass_higher_order_ops()


def _pass_higher_order_ops() -> None:
    """Higher-order ops (torch.cond, flex_attention) have no rule in a policy: the dispatcher skips our key for them, also for later ones."""
    key = torch._C._dispatch_key_parse(_core.AUTOCAST_KEY)
    torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(key)
    for op in torch._ops._higher_order_ops.values():
        op.fallthrough(key)  # type: ignore[no-untyped-call]


_torch_fastpath_enabled = torch.backends.mha.get_fastpath_enabled


@functools.wraps(_torch_fastpath_enabled)
def _fastpath_enabled() -> bool:
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        # What the original returns, which torch.compile knows by itself alone; "maia" is on in every region of ours.
        return torch.backends.mha._is_fastpath_enabled and not torch.is_autocast_enabled("maia")
    return True
