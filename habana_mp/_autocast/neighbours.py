"""Places of torch that regions of autocast must reach besides the dispatcher."""

from __future__ import annotations

import functools
from typing import Any

import torch

import habana_mp._core as _core
from habana_mp._compiled import export, rounding
from habana_mp._scope import checkpointing, training_step
from habana_mp._scope.after_import import after_import
from habana_mp._torch_private import AOT_CACHE, AOT_CACHE_KEYS, FASTPATH, HIGHER_ORDER_OPS, VERSION, is_fastpath_enabled


def prepare() -> None:
    """What regions need without a conversion too: activation checkpointing recomputes under the region of its forward, the steps of
    optimizers run without casts, and the fused encoder layer of inference, which no policy can see into, is not taken inside.
    tests/project/test_what_stays.py says why nothing of it is undone.
    """
    checkpointing.serve()
    training_step.serve()
    _prepare_once()


@functools.cache
def _prepare_once() -> None:
    export.serve()
    rounding.serve()
    if VERSION < (2, 13):
        after_import(AOT_CACHE, _have_dtypes_in_keys)
    _pass_higher_order_ops()
    if FASTPATH.works:
        torch.backends.mha.get_fastpath_enabled = _fastpath_enabled


def _have_dtypes_in_keys() -> None:
    """The keys of torch.compile's cache of graphs tell the policies of regions apart by them (src/scope/codes.h)."""
    if not AOT_CACHE_KEYS.works:
        return
    original, devices = AOT_CACHE_KEYS.key.__init__, AOT_CACHE_KEYS.devices

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        on = filter(torch.is_autocast_enabled, devices())
        self.autocast_state = {device: torch.get_autocast_dtype(device) for device in on}  # as torch 2.13 has it

    AOT_CACHE_KEYS.key.__init__ = init


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
