"""Places of torch that a conversion must reach besides the ops: each a patch that is undone with the others."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.checkpoint

from habana_mp import _core, _rank, _script, _state
from habana_mp._disable import casts_off
from habana_mp._patched import _ops
from habana_mp._policy import Policy


def patches(policy: Policy) -> Iterator[tuple[Any, ...]]:
    """(owner, attribute, value) of each."""
    if any(policy.rule(name).listed_as for name in _PADS) and not policy.rule("pad").listed_as:
        yield torch.nn.functional, "pad", _pad
        yield torch._C._nn, "pad", _pad
    # The fused encoder layer of inference would run past linear, layer_norm and softmax, as it would past torch.autocast, which
    # switches it off too.
    yield torch.backends.mha, "_is_fastpath_enabled", False
    yield torch.jit, "script", _script.script
    yield torch.nn.RNNBase, "check_input", _check_rnn_input
    yield torch.nn.Module, "__getstate__", _module_state
    yield from _checkpoint_patches()
    yield from _redistribute_patches()


_PADS = [f"{kind}_pad{n}d" for kind in ("reflection", "replication") for n in (1, 2, 3)]

_torch_pad = torch._C._nn.pad
_checkpoint_generator = torch.utils.checkpoint._checkpoint_without_reentrant_generator
_checkpoint_forward = torch.utils.checkpoint.CheckpointFunction.forward
_rnn_check_input = torch.nn.RNNBase.check_input


@functools.wraps(_torch_pad)
def _pad(input: torch.Tensor, pad: Any, mode: str = "constant", value: float | None = None) -> torch.Tensor:  # noqa: A002
    """F.pad by the names that a policy knows: which op it is hangs on the mode and the number of padded dimensions (D17)."""
    kind = {"reflect": "reflection", "replicate": "replication"}.get(mode)
    padded = len(pad) // 2
    if kind is None or f"{kind}_pad{padded}d" not in _PADS or input.dim() not in (padded + 1, padded + 2):
        return _torch_pad(input, pad, mode, value)
    return getattr(torch._C._nn, f"{kind}_pad{padded}d")(input, pad)  # type: ignore[no-any-return]


def _check_rnn_input(self: torch.nn.RNNBase, input: torch.Tensor, batch_sizes: torch.Tensor | None) -> None:  # noqa: A002
    """torch's check without the one of dtypes: casts make input and weights meet (D16)."""
    weight = self._flat_weights[0]
    if isinstance(weight, torch.Tensor) and input.dtype != weight.dtype and not casts_off():
        input = torch.empty_like(input, dtype=weight.dtype, device="meta")  # noqa: A001
    _rnn_check_input(self, input, batch_sizes)


class _ByName:
    """A captured original, inside a module's state that is about to be pickled: pickled by the name of its home."""

    def __init__(self, home: str) -> None:
        self.home = home

    def __reduce__(self) -> tuple[Any, ...]:
        import pkgutil

        return pkgutil.resolve_name, (self.home,)


def _module_state(self: torch.nn.Module) -> dict[str, Any]:
    """The state of a module for pickle, with originals that it captured before convert (TransformerEncoderLayer keeps F.relu).

    Pickle finds functions by name, and finds the patched op there, which is not the same object (D36). A copy in this process keeps
    the original.
    """
    state = self.__dict__
    if sys._getframe(1).f_globals.get("__name__") == copy.__name__:
        return state
    named = {name: _by_name(value) for name, value in state.items()}
    return named if any(named[name] is not value for name, value in state.items()) else state


def _by_name(value: Any) -> Any:
    """A value of a module's state with the captured originals in it by name; the value itself where there are none."""
    if id(value) in _ops:
        return _ByName(_ops[id(value)].home)
    if type(value) in (list, tuple) and any(id(item) in _ops for item in value):
        return type(value)(map(_by_name, value))
    if type(value) is dict and any(id(item) in _ops for item in value.values()):
        return {key: _by_name(item) for key, item in value.items()}
    return value


def serve_autocast() -> None:
    """What regions need without a conversion too: activation checkpointing recomputes under the region of its forward, and the fused
    encoder layer of inference, which no policy can see into, is not taken inside.
    """
    module = torch.utils.checkpoint
    if module._checkpoint_without_reentrant_generator is _checkpoint_generator:
        for owner, name, value in _checkpoint_patches():
            setattr(owner, name, value)
    if torch.backends.mha.get_fastpath_enabled is not _fastpath_enabled:
        torch.backends.mha.get_fastpath_enabled = _fastpath_enabled
        _pass_higher_order_ops()


def _pass_higher_order_ops() -> None:
    """Higher-order ops (torch.cond, flex_attention) know no policy: they pass our dispatch key by, those made later too."""
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


def _checkpoint_patches() -> Iterator[tuple[Any, str, Any]]:
    for holder in (torch.utils.checkpoint, sys.modules.get("torch.distributed._composable.checkpoint_activation")):
        if holder is not None:
            yield holder, "_checkpoint_without_reentrant_generator", _carrying_state(_checkpoint_generator, 0)
    yield (
        torch.utils.checkpoint.CheckpointFunction,
        "forward",
        staticmethod(_carrying_state(_checkpoint_forward, 1)),
    )


_DTENSOR = "torch.distributed.tensor"


def _redistribute_patches() -> Iterator[tuple[Any, str, Any]]:
    """DTensor divides a bias by the number of ranks that will add it up, and more like this, amid an op whose casts are done.

    Its package takes half a second to import, which one process alone is spared.
    """
    if _DTENSOR not in sys.modules and _rank.world_size() == 1:
        return
    for name in ("_redistribute", "_dispatch", "_api"):
        module = importlib.import_module(f"{_DTENSOR}.{name}")
        yield module, _REDISTRIBUTE, _without_casts(getattr(module, _REDISTRIBUTE))


_REDISTRIBUTE = "redistribute_local_tensor"


def _without_casts(function: Callable[..., Any]) -> Callable[..., Any]:
    """For a function of torch's, amid an op: unlike the end of ``disable_casts``, that of the call says nothing of the weights."""
    function = inspect.unwrap(function)  # a second conversion finds that of the first

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        off = _core.casts_off()
        _core.set_casts_off(True)
        try:
            return function(*args, **kwargs)
        finally:
            _core.set_casts_off(off)

    return run


def _carrying_state(original: Callable[..., Any], position: int) -> Callable[..., Any]:
    """An entry of activation checkpointing whose function, the argument at ``position``, is recomputed as it was computed."""

    def entry(*args: Any, **kwargs: Any) -> Any:
        function = _as_now(args[position])
        return original(*args[:position], function, *args[position + 1 :], **kwargs)

    return entry


def _as_now(function: Callable[..., Any]) -> Callable[..., Any]:
    policy, region = _state.policy, _core.current_autocast()

    def as_then(*args: Any, **kwargs: Any) -> Any:
        if _state.policy != policy:
            raise RuntimeError(
                f"a checkpointed part of the model ran under {policy!r} and is recomputed for backward under {_state.policy!r}: "
                "finish backward before hmp.convert or hmp.revert"
            )
        _core.enter_autocast(region, as_then)
        try:
            return function(*args, **kwargs)
        finally:
            _core.leave_autocast(as_then)

    return as_then
