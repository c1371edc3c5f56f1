"""Places of torch that regions of autocast must reach besides the dispatcher."""

from __future__ import annotations

import functools

import torch

import habana_mp._core as _core
from habana_mp._autocast import export
from habana_mp._scope import checkpointing, training_step
from habana_mp._torch_private import FASTPATH, HIGHER_ORDER_OPS, is_fastpath_enabled


def prepare() -> None:
    """What regions need without a conversion too: activation checkpointing recomputes under the region of its forward, the steps of
    optimizers run without casts, and the fused encoder layer of inference, which no policy can see into, is not taken inside. WHAT_STAYS
    of habana_mp/_torch_private.py says why nothing of it is undone.
    """
    checkpointing.serve()
    training_step.serve()
    _prepare_once()


@functools.cache
def _prepare_once() -> None:
    export.record_casts()
    _pass_higher_order_ops()
    if FASTPATH.works:
        torch.backends.mha.get_fastpath_enabled = _fastpath_enabled


def _pass_higher_order_ops() -> None:
    """Higher-order ops (torch.cond, flex_attention) have no rule in a policy: the dispatcher skips our key for them, also for later ones."""
    if not HIGHER_ORDER_OPS.works:
        return
    key = HIGHER_ORDER_OPS.key(_core.AUTOCAST_KEY)
    HIGHER_ORDER_OPS.later_ones.append(key)
    for op in HIGHER_ORDER_OPS.all.values():
        op.fallthrough(key)


_torch_fastpath_enabled = torch.backends.mha.get_fastpath_enabled


@functools.wraps(_torch_fastpath_enabled)
def _fastpath_enabled() -> bool:
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        # What the original returns, which torch.compile knows by itself alone; "maia" is on in every region of ours.
        return is_fastpath_enabled() and not torch.is_autocast_enabled("maia")
    return True
