"""Activation checkpointing recomputes a part of a model under what it ran under: convert's policy and the regions of autocast."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.checkpoint

import habana_mp._core as _core
from habana_mp._scope import in_force, torch_autocast
from habana_mp._torch_private import CHECKPOINT, COMPOSABLE_CHECKPOINT

_checkpoint_generator = CHECKPOINT.get("generator")
_reentrant = torch.utils.checkpoint.CheckpointFunction
_checkpoint_forward = _reentrant.forward


def serve() -> None:
    """Put the patches in place for good, unless a conversion has."""
    if _reentrant.forward is _checkpoint_forward:
        for owner, name, value in patches():
            setattr(owner, name, value)


def patches() -> Iterator[tuple[Any, str, Any]]:
    if CHECKPOINT.works:
        owner, name = CHECKPOINT.place("generator")
        for holder in (owner, sys.modules.get(COMPOSABLE_CHECKPOINT)):
            if holder is not None:
                yield holder, name, _carrying_state(_checkpoint_generator, 0)
    yield _reentrant, "forward", staticmethod(_carrying_state(_checkpoint_forward, 1))


def _carrying_state(original: Callable[..., Any], position: int) -> Callable[..., Any]:
    """An entry of activation checkpointing whose function, the argument at ``position``, is recomputed as it was computed."""

    def entry(*args: Any, **kwargs: Any) -> Any:
        function = _as_now(args[position])
        return original(*args[:position], function, *args[position + 1 :], **kwargs)

    return entry


def _as_now(function: Callable[..., Any]) -> Callable[..., Any]:
    policy, region = in_force.policy, _core.current_autocast()
    in_forward = policy is not None and torch_autocast.is_in_forward()

    def as_then(*args: Any, **kwargs: Any) -> Any:
        if in_force.policy != policy:
            raise RuntimeError(
                f"a checkpointed part of the model ran under {policy!r} and is recomputed for backward under {in_force.policy!r}: "
                "finish backward before hmp.convert or hmp.revert"
            )
        with region:
            if in_forward:
                return torch_autocast.called_in_forward(function, *args, **kwargs)
            return function(*args, **kwargs)

    return as_then
