"""What a function uses and may change: what its code can reach by names, and where each tensor was found."""

from __future__ import annotations

import contextlib
import dis
import functools
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.amp import GradScaler
from torch.optim import Optimizer, lr_scheduler
from torch.utils.data import Sampler

from habana_mp._torch_private import HOOKS

# All of what these hold is their state.
STATEFUL = (torch.nn.Module, Optimizer, lr_scheduler.LRScheduler, GradScaler, Sampler)
_MOST = 100_000  # objects that are looked at
_NOT_ENTERED = (types.ModuleType, type, str, bytes, int, float, complex, bool, torch.dtype, torch.device)
# Of libraries whose objects hold nothing of the program, or which are kept as a whole.
_LIBRARIES = ("builtins", "habana_mp", "numpy", "torch")
_QUEUES = ("_queue", "queue", "multiprocessing.queues")
_BUILT_IN = ("builtins", "itertools", "torch")  # whose iterators a step may take items from


@dataclass(frozen=True)
class _Slot:
    """Of an object of a class with __slots__."""

    owner: Any
    member: types.MemberDescriptorType

    def get(self) -> Any:
        try:
            return self.member.__get__(self.owner)
        except AttributeError:  # it is empty
            return None


_Place = dict[Any, Any] | list[Any] | types.CellType | _Slot


@dataclass(frozen=True)
class Found:
    """An object, the name that led to it, and where that name stands: ``put_back`` binds it to the object again."""

    name: str
    value: Any
    place: _Place | None = None
    key: Any = None

    def put_back(self) -> None:
        if isinstance(self.place, types.CellType):
            self.place.cell_contents = self.value
        elif isinstance(self.place, list):
            if self.key < len(self.place) and self.place[self.key] is not self.value:
                self.place[self.key] = self.value
        elif isinstance(self.place, _Slot):
            if self.place.get() is not self.value:
                self.place.member.__set__(self.place.owner, self.value)
        elif self.place is not None and self.place.get(self.key) is not self.value:
            self.place[self.key] = self.value


class Reachable:
    """Follows closures, globals that the code names, defaults, bound objects, and what these hold, the nearest first.

    ``found`` has what is state as a whole, tensors and arrays. ``floats`` are attributes of objects of the program, ``leaves`` the tensors to
    which a graph that was recorded before adds gradients.

    Methods, and iterators in attributes, count if code that was reached has their name. What libraries keep in their objects, such as the work
    queue of a pool, is theirs.
    """

    def __init__(self, steps: Iterable[Callable[..., Any]]) -> None:
        self.found: list[Found] = []
        self.iterators: list[Found] = []
        self.floats: list[Found] = []
        self.leaves: list[Found] = []
        self._names: set[str] = {"__call__", "forward"}
        self._unnamed: dict[str, list[Found]] = {}
        self._seen: dict[int, Any] = {}
        self._tensors: dict[int, Any] = {}  # a set of data may have more than _MOST
        self._nodes: dict[int, Any] = {}
        self._waiting = deque(Found(_name_of(step), step) for step in steps)
        while self._waiting and len(self._seen) < _MOST:
            self._look_at(self._waiting.popleft())

    def _look_at(self, each: Found) -> None:
        value = each.value
        if value is None or isinstance(value, _NOT_ENTERED):
            return
        if isinstance(value, torch.Tensor) or is_array(value):
            self.found.append(each)  # once for each place
            if isinstance(value, torch.Tensor):
                self._look_beside(each)
            return
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if _is_iterator(value):
            self.iterators.append(each)
            return
        if isinstance(value, STATEFUL) or is_generator(value):
            self.found.append(each)
        if isinstance(value, torch.nn.Module):
            for name, weight in value.named_parameters(recurse=False):
                self._look_beside(Found(f"{each.name}.{name}", weight))
        if isinstance(value, Optimizer):
            self._waiting += _hooks(each, "before_step", "after_step")
        if isinstance(value, (torch.nn.Module, Sampler)) or not isinstance(value, STATEFUL):
            self._look_into(each)

    def _look_beside(self, each: Found) -> None:
        """At what a tensor has besides its numbers: attributes of the program, hooks, and a graph that was recorded before."""
        if id(each.value) in self._tensors:
            return
        self._tensors[id(each.value)] = each.value
        space = _space_of(each.value)
        self._waiting += (Found(f"{each.name}.{key}", held, space, key) for key, held in [*space.items()])
        with HOOKS.get("unseen")() if HOOKS.works else contextlib.nullcontext():
            self._waiting += _hooks(each, "of_gradient", "after_gradient")
            node = each.value.grad_fn
        self.leaves += (Found(f"a weight of {each.name}", leaf) for leaf in _leaves_of(node, self._nodes))

    def _look_into(self, each: Found) -> None:
        value = each.value
        if isinstance(value, types.FunctionType):
            self._waiting += _used_by(value)
            for name in _names_in(value.__code__) - self._names:
                self._names.add(name)
                self._waiting += self._unnamed.pop(name, ())
        elif isinstance(value, types.MethodType):
            self._waiting += [Found(each.name, value.__self__), Found(each.name, value.__func__)]
        elif isinstance(value, functools.partial):
            self._waiting += _items(each.name, [value.func, *value.args, *value.keywords.values()])
        elif isinstance(value, (dict, list, tuple, set, frozenset, deque)):
            self._waiting += _items(each.name, value)
        else:
            for needed, held in _attributes(value, each.name):
                if type(held.value) is float:
                    self.floats.append(held)
                elif needed is None or needed in self._names:
                    self._waiting.append(held)
                else:
                    self._unnamed.setdefault(needed, []).append(held)


def _name_of(step: object) -> str:
    return getattr(step, "__name__", None) or type(step).__name__


def is_array(value: object) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def is_generator(value: object) -> bool:
    """Of random numbers."""
    if isinstance(value, (torch.Generator, random.Random)):
        return True
    numpy = sys.modules.get("numpy.random")
    return numpy is not None and isinstance(value, (numpy.Generator, numpy.RandomState))


def _is_iterator(value: object) -> bool:
    """What gives its items once. A file is one by its type, and written to as well."""
    own = type(value)  # a weak proxy has the class of another object
    if issubclass(own, STATEFUL) or hasattr(own, "write"):
        return False
    if own.__module__ in _QUEUES:
        return True
    return issubclass(own, Iterator) and (own.__module__.partition(".")[0] in _BUILT_IN or _is_of_the_program(own))


def _is_of_the_program(own: type) -> bool:
    file = getattr(sys.modules.get(own.__module__), "__file__", None) or ""
    return not _is_library(own.__module__) and "site-packages" not in file and "dist-packages" not in file


def _items(name: str, value: Any) -> Iterator[Found]:
    if isinstance(value, dict):
        yield from (Found(f"{name}[{_shown(key)}]", each, value, key) for key, each in [*value.items()])
    elif isinstance(value, list):
        yield from (Found(f"{name}[{place}]", each, value, place) for place, each in enumerate([*value]))
    else:
        yield from (Found(name, each) for each in [*value])


def _hooks(each: Found, *names: str) -> list[Found]:
    return [Found(each.name, HOOKS.of(each.value, name, None)) for name in names]


def _shown(key: object) -> str:
    return repr(key) if isinstance(key, (str, int)) else "..."


def _used_by(function: types.FunctionType) -> Iterator[Found]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # it is empty
            yield Found(name, cell.cell_contents, cell)
    space = function.__globals__
    if not _is_library(space.get("__name__", "")):  # threading knows all threads
        named = [name for name in _names_in(code) if name in space]
        if any(_is_iterator(space[name]) for name in named):  # an attribute may have the same name
            named = [name for name in named if name in _globals_of(code)]
        yield from (Found(name, space[name], space, name) for name in named)
    defaults = function.__defaults__ or ()
    last = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    yield from (Found(name, each) for name, each in zip(last, defaults, strict=True))
    yield from (Found(name, each) for name, each in (function.__kwdefaults__ or {}).items())


def _attributes(value: object, name: str) -> Iterator[tuple[str | None, Found]]:
    """Each with the name that code must have to use it; None where it counts in any case."""
    own = type(value)
    library = own.__module__.partition(".")[0] in _LIBRARIES
    module = isinstance(value, torch.nn.Module)
    if library and not module and not own.__module__.startswith("torch.utils.data"):
        return
    space = _space_of(value)
    theirs = not module and not _is_of_the_program(own)
    for key, each in [*space.items()]:
        # Those of modules are kept with them.
        if (theirs and _is_iterator(each)) or ((theirs or module) and type(each) is float):
            continue
        empty = isinstance(each, (dict, list, set)) and not each
        if not empty and not (module and key in {"_parameters", "_buffers"}):
            yield key if _is_iterator(each) else None, Found(f"{name}.{key}", each, space, key)
    for kind in own.__mro__:
        if not _is_library(kind.__module__):
            for key, each in [*vars(kind).items()]:
                if (function := _function_of(each)) is not None:
                    yield key, Found(f"{name}.{key}", function)
                elif isinstance(each, types.MemberDescriptorType) and not theirs:
                    slot = _Slot(value, each)
                    yield None, Found(f"{name}.{key}", slot.get(), slot)


def _is_library(module: str) -> bool:
    """Whether its functions hold nothing of the program but in their closures."""
    root = module.partition(".")[0]
    return root in _LIBRARIES or root in sys.stdlib_module_names


def _function_of(each: object) -> object:
    if isinstance(each, property):
        return each.fget
    if isinstance(each, (staticmethod, classmethod)):
        return each.__func__
    return each if isinstance(each, types.FunctionType) else None


def _space_of(value: object) -> dict[str, Any]:
    try:  # not by its __getattr__, which may raise anything
        found: dict[str, Any] = object.__getattribute__(value, "__dict__")
    except AttributeError:  # it has slots
        return {}
    return found


def _leaves_of(node: Any, seen: dict[int, Any]) -> Iterator[torch.Tensor]:
    """To which a backward pass from the node adds gradients."""
    waiting = [node]
    while waiting and len(seen) < _MOST:
        node = waiting.pop()
        if node is None or id(node) in seen:
            continue
        seen[id(node)] = node
        waiting += (each for each, _ in node.next_functions)
        if (leaf := getattr(node, "variable", None)) is not None:
            yield leaf


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Of a function, and of those inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _names_in(code: types.CodeType) -> set[str]:
    return {name for each in _codes(code) for name in each.co_names}


def _globals_of(code: types.CodeType) -> set[str]:
    used = (each for inner in _codes(code) for each in dis.get_instructions(inner))
    return {each.argval for each in used if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
