"""Places of torch that a conversion must reach besides the ops: each a patch that is undone with the others."""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils.checkpoint

from habana_mp._convert import jit_script
from habana_mp._convert.patched_op import patched_ops
from habana_mp._policy.policy import Policy
from habana_mp._ranks.rank import world_size
from habana_mp._scope import checkpointing, torch_autocast, training_step
from habana_mp._scope.disable_casts import casts_off
from habana_mp._scope.without_casts import made_of, without_casts
from habana_mp._torch_private import DTENSOR, FASTPATH, PADS, calling_frame


def patches(policy: Policy) -> Iterator[tuple[Any, ...]]:
    if any(policy._rule(name).listed_as for name in _PADS) and not policy._rule("pad").listed_as and PADS.works:
        yield torch.nn.functional, "pad", _pad
        yield *PADS.place("pad"), _pad
    # The fused encoder layer of inference would run past linear, layer_norm and softmax, as it would past torch.autocast, which
    # switches it off too.
    if FASTPATH.works:
        yield *FASTPATH.place("enabled"), False
    yield from jit_script.patches()
    yield torch.nn.RNNBase, "check_input", _check_rnn_input
    yield torch.nn.TransformerEncoderLayer, "__init__", _init_encoder_layer
    yield torch.nn.Module, "__getstate__", _module_state
    yield from checkpointing.patches()
    yield from torch_autocast.patches()
    yield from training_step.patches()
    # DTensor divides a bias by the number of ranks that will add it up, and more like this, amid an op whose casts are done. Its package takes
    # half a second to import, which one process alone is spared.
    if ("torch.distributed.tensor" in sys.modules or world_size() > 1) and DTENSOR.works:
        for name in DTENSOR.paths:
            yield *DTENSOR.place(name), without_casts(made_of(getattr(DTENSOR, name)))


_PADS = [f"{kind}_pad{n}d" for kind in ("reflection", "replication") for n in (1, 2, 3)]

_nn, _torch_pad = PADS.get("home"), PADS.get("pad")
_rnn_check_input = torch.nn.RNNBase.check_input
_torch_init_encoder_layer = torch.nn.TransformerEncoderLayer.__init__


@functools.wraps(_torch_pad)
def _pad(input: torch.Tensor, pad: Any, mode: str = "constant", value: float | None = None) -> torch.Tensor:  # noqa: A002
    """F.pad by the names that a policy knows: which op it is depends on the mode and the number of padded dimensions."""  # (D17)
    kind = {"reflect": "reflection", "replicate": "replication"}.get(mode)
    padded = len(pad) // 2
    if kind is None or f"{kind}_pad{padded}d" not in _PADS or input.dim() not in (padded + 1, padded + 2):
        return _torch_pad(input, pad, mode, value)  # type: ignore[no-any-return]
    return getattr(_nn, f"{kind}_pad{padded}d")(input, pad)  # type: ignore[no-any-return]


def _check_rnn_input(self: torch.nn.RNNBase, input: torch.Tensor, batch_sizes: torch.Tensor | None) -> None:  # noqa: A002
    """torch's check without the one of dtypes: casts make input and weights meet."""  # (D16)
    weight = next(self.parameters(), None)  # not by its name: a parametrization would compute it once more
    if weight is not None and input.dtype != weight.dtype and not casts_off():
        input = torch.empty_like(input, dtype=weight.dtype, device="meta")  # noqa: A001
    _rnn_check_input(self, input, batch_sizes)


@functools.wraps(_torch_init_encoder_layer)
def _init_encoder_layer(self: torch.nn.TransformerEncoderLayer, *args: Any, **kwargs: Any) -> None:
    """torch's, which notes whether the activation *is* F.relu or F.gelu: its default argument is torch's own function, and those are patched."""
    _torch_init_encoder_layer(self, *args, **kwargs)
    for number, op in enumerate((torch.nn.functional.relu, torch.nn.functional.gelu), start=1):
        if self.activation is getattr(op, "__wrapped__", None):
            self.activation_relu_or_gelu = number


def _module_state(self: torch.nn.Module) -> dict[str, Any]:
    """The state of a module for pickle, with the patched ops of originals that it captured before convert (TransformerEncoderLayer keeps F.relu).

    Pickle finds functions by name, and finds the patched op there, which is not the same object. A copy in this process keeps
    the original.
    """  # (D36)
    state = self.__dict__
    caller = calling_frame()
    if caller is not None and caller.f_globals.get("__name__") == copy.__name__:
        return state
    named = {name: _patched(value) for name, value in state.items()}
    return named if any(named[name] is not value for name, value in state.items()) else state


def _patched(value: Any) -> Any:
    """A value of a module's state with the patched ops of the originals in it; the value itself where there are none."""
    if id(value) in patched_ops:
        return patched_ops[id(value)]
    if type(value) in (list, tuple) and any(id(item) in patched_ops for item in value):
        return type(value)(map(_patched, value))
    if type(value) is dict and any(id(item) in patched_ops for item in value.values()):
        return {key: _patched(item) for key, item in value.items()}
    return value
