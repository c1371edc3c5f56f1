"""Parameters and buffers made under a conversion are those that the model has without it (D45).

No casts while a module is constructed or initializes its weights: src/scope/construction.h. A parameter that is made elsewhere of a
result in lower precision triggers a warning.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.modules import module as _nn_module
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)

import habana_mp._core as _core
from habana_mp._scope import torch_autocast
from habana_mp._scope.without_casts import made_of, without_casts
from habana_mp._show.warning import warn

# What constructs, and what libraries and users call the functions that initialize.
_CONSTRUCTING = (
    "__init__",
    "reset_parameters",
    "_reset_parameters",
    "init_weights",
    "_init_weights",
    "initialize_weights",
    "_initialize_weights",
)
_torch_init = torch.nn.Module.__init__
_known: weakref.WeakSet[type] = weakref.WeakSet()
_hooks: list[Any] = []


def patches() -> Iterator[tuple[Any, str, Any]]:
    yield torch.nn.Module, "__init__", _begin
    yield torch.nn.Module, "apply", without_casts(made_of(torch.nn.Module.apply))


@functools.wraps(_torch_init)
def _begin(self: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
    if not torch.compiler.is_compiling():
        if type(self) not in _known:
            _know(type(self))
        _core.begin_construction()
    _torch_init(self, *args, **kwargs)


def _know(kind: type[torch.nn.Module]) -> None:
    for each in kind.__mro__:
        if not issubclass(each, torch.nn.Module):
            continue
        for name in _CONSTRUCTING:
            # A decorator's own code runs for other functions too.
            code = getattr(inspect.unwrap(vars(each).get(name, _know)), "__code__", None)
            if code is not None and name in vars(each):
                _core.add_construction_code(code)
    _known.add(kind)
    torch_autocast.reach_transformers()  # which may have been imported since the conversion


def watch() -> None:
    """Called by ``convert``."""
    if not _hooks:
        _hooks.append(register_module_parameter_registration_hook(functools.partial(_warn, "parameter")))
        _hooks.append(register_module_buffer_registration_hook(functools.partial(_warn, "buffer")))


def unwatch() -> None:
    """Called by ``revert``."""
    while _hooks:
        _hooks.pop().remove()


def _warn(what: str, module: torch.nn.Module, name: str, tensor: torch.Tensor | None) -> None:
    made = None if tensor is None else _core.maker_of(tensor)
    if made is not None and tensor is not None:
        op, rule = made
        dtype = str(tensor.dtype).removeprefix("torch.")
        warn(
            f"{what} {name!r} of {type(module).__name__} is {dtype}, because {op} made it under hmp.convert: {rule}. Small updates of it "
            "would be lost. Make it in hmp.disable_casts().",
            through=str(_nn_module.__file__),
        )
