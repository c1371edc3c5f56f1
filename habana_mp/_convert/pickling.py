"""Modules that captured an op before convert can be pickled under it."""

from __future__ import annotations

import copy
from typing import Any

import torch

from habana_mp._convert.patched_op import patched_ops
from habana_mp._torch_private import calling_frame


class _ByName:
    """A captured original, inside a module's state that is about to be pickled: pickled by the name of its home."""

    def __init__(self, home: str) -> None:
        self.home = home

    def __reduce__(self) -> tuple[Any, ...]:
        import pkgutil

        return pkgutil.resolve_name, (self.home,)


def module_state(self: torch.nn.Module) -> dict[str, Any]:
    """The state of a module for pickle, with originals that it captured before convert (TransformerEncoderLayer keeps F.relu).

    Pickle finds functions by name, and finds the patched op there, which is not the same object (D36). A copy in this process keeps
    the original.
    """
    state = self.__dict__
    caller = calling_frame()
    if caller is not None and caller.f_globals.get("__name__") == copy.__name__:
        return state
    named = {name: _by_name(value) for name, value in state.items()}
    return named if any(named[name] is not value for name, value in state.items()) else state


def _by_name(value: Any) -> Any:
    """A value of a module's state with the captured originals in it by name; the value itself where there are none."""
    if id(value) in patched_ops:
        return _ByName(patched_ops[id(value)].home)
    if type(value) in (list, tuple) and any(id(item) in patched_ops for item in value):
        return type(value)(map(_by_name, value))
    if type(value) is dict and any(id(item) in patched_ops for item in value.values()):
        return {key: _by_name(item) for key, item in value.items()}
    return value
