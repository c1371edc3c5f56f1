"""Parameters and buffers made under a conversion are those that the model has without it.

No casts while a module is constructed (src/scope/construction.h), nor in the functions by which modules initialize their weights. A parameter
that is made elsewhere of a result in lower precision triggers a warning: when a module gets it, or an optimizer.
"""  # (D45)

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CellType, CodeType, FunctionType
from typing import Any

import torch
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.nn.utils import fusion, parametrize
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils.weak import WeakTensorKeyDictionary

import habana_mp._core as _core
from habana_mp._cast import dtype_name
from habana_mp._scope import torch_autocast
from habana_mp._scope.without_casts import made_of, subclasses, without_casts
from habana_mp._show.warning import warn

# What libraries and users call the functions that initialize.
_INITIALIZING = [
    f"{mark}{name}" for name in ("reset_parameters", "init_weights", "initialize_weights") for mark in ("", "_")
]
# What makes a parameter anew of what it was computed from.
_REMAKING: tuple[tuple[Any, str], ...] = (
    (WeightNorm, "remove"),
    (SpectralNorm, "remove"),
    (parametrize, "remove_parametrizations"),
    (fusion, "fuse_conv_bn_weights"),
    (fusion, "fuse_linear_bn_weights"),
)
_EMPTY = CellType()
_torch_init = torch.nn.Module.__init__
_torch_new = torch.nn.Parameter.__new__
_torch_add = torch.optim.Optimizer.add_param_group
_known: weakref.WeakSet[type] = weakref.WeakSet()
_hooks: list[Any] = []
# The functions of classes that initialize.
_initializing: list[_core.PatchSet] = []
# Parameters that a rule has made low, with the op and its rule.
_low: Any = WeakTensorKeyDictionary()


def patches() -> Iterator[tuple[Any, str, Any]]:
    yield torch.nn.Module, "__init__", _begin
    yield torch.nn.Module, "apply", without_casts(made_of(torch.nn.Module.apply))
    yield torch.nn.Parameter, "__new__", staticmethod(_new)
    yield torch.optim.Optimizer, "add_param_group", _add_param_group
    from torch.nn.utils.prune import BasePruningMethod  # torch has not imported it

    for owner, name in (*_REMAKING, (BasePruningMethod, "remove")):
        yield owner, name, without_casts(made_of(getattr(owner, name)))


@functools.wraps(_torch_init)
def _begin(self: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
    if not torch.compiler.is_compiling():
        if type(self) not in _known:
            _know([type(self)])
        _core.begin_construction()
    _torch_init(self, *args, **kwargs)


def _know(kinds: Iterable[type]) -> None:
    rows = []
    # Their bases too: mixins make parameters, and are no modules.
    for each in dict.fromkeys(base for kind in kinds if kind not in _known for base in kind.__mro__):
        if each in _known or each is object:
            continue
        _known.add(each)
        own = vars(each)
        for code in _codes_of(own["__init__"]) if "__init__" in own else ():
            named = code.co_name == "__init__" and issubclass(each, torch.nn.Module)
            _core.add_construction_code(code, None if named else torch.nn.Module)
        functions = ((name, own[name]) for name in _INITIALIZING if name in own)
        rows += [(each, name, without_casts(f)) for name, f in functions if isinstance(f, FunctionType)]
    if rows:
        _initializing.append(_core.PatchSet())
        _initializing[-1].install(rows)
    torch_autocast.reach_transformers()  # which may have been imported since the conversion


def _codes_of(constructor: Any) -> list[CodeType]:
    """What is on the stack while the constructor runs and at no other time: a decorator's own code runs for other functions too."""
    function = inspect.unwrap(constructor)
    if not isinstance(function, FunctionType):
        return []
    # A decorator without functools.wraps has what it decorates in its closure, or another decorator that has.
    within = [function]
    for each in within:
        if each.__code__.co_name == "__init__":
            return [each.__code__]
        closed_over = (cell.cell_contents for cell in each.__closure__ or () if cell != _EMPTY)
        within += [inner for inner in closed_over if isinstance(inner, FunctionType) and inner not in within]
    return [each.__code__ for each in within]


def watch() -> None:
    if not _hooks:
        _hooks.append(register_module_parameter_registration_hook(functools.partial(_registered, "parameter")))
        _hooks.append(register_module_buffer_registration_hook(functools.partial(_registered, "buffer")))
        _know(subclasses(torch.nn.Module))


def unwatch() -> None:
    while _hooks:
        _hooks.pop().remove()
    while _initializing:
        _initializing.pop().uninstall()
    _known.clear()


@functools.wraps(_torch_new)
def _new(cls: type[torch.nn.Parameter], data: Any = None, requires_grad: bool = True) -> torch.nn.Parameter:
    parameter = _torch_new(cls, data, requires_grad)
    made = _core.maker_of(parameter)
    if made is not None:
        _low[parameter] = made
    return parameter


def _registered(what: str, module: torch.nn.Module, name: str, tensor: torch.Tensor | None) -> None:
    if tensor is None:
        return
    made = _low.pop(tensor, None) or _core.maker_of(tensor)
    if made is not None:
        _warn(f"{what} {name!r} of {type(module).__name__}", tensor, made)


@functools.wraps(_torch_add)
def _add_param_group(self: torch.optim.Optimizer, param_group: dict[str, Any]) -> None:
    _torch_add(self, param_group)
    for tensor in self.param_groups[-1]["params"]:
        made = _low.pop(tensor, None)
        if made is not None:
            _warn(f"a parameter of shape {tuple(tensor.shape)} of {type(self).__name__}", tensor, made)


def _warn(what: str, tensor: torch.Tensor, made: tuple[str, str]) -> None:
    op, rule = made
    warn(
        f"{what} is {dtype_name(tensor.dtype)}, because {op} made it under hmp.convert: {rule}. Small updates of it "
        "would be lost. Make it in hmp.disable_casts().",
        through=str(Path(torch.__file__).parent),
    )
