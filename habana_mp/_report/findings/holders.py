"""Who holds a plain op of torch from before ``convert``: a name bound by ``from torch import mm``, a table of activations, an attribute.

Asked only where a call went past the conversion. Looks at what Python's garbage collector knows; knows nothing of policies.
"""

from __future__ import annotations

import functools
import gc
import itertools
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

import habana_mp._core as _core
from habana_mp._convert.patched_op import PatchedOp
from habana_mp._policy.homes import ops

_MOST = 8  # holders that are named for one op
_FAR = 3  # steps from a holder to something that has a name


def holders(names: Iterable[str]) -> dict[str, list[str]]:
    """Where the functions of these ops are held, outside of torch's own namespaces: "transformers.activations.ACT2FN['gelu']"."""
    wanted = {name: {name}.union(*_core.candidates(name)) for name in names}
    torchs = {id(original): {id(home.owner.__dict__) for home in homes} for original, homes in ops()}
    held = {
        name: [original for original, homes in ops() if not spellings.isdisjoint(home.name for home in homes)]
        for name, spellings in wanted.items()
    }
    referrers = _Referrers()
    referrers.look(itertools.chain.from_iterable(held.values()), _FAR + 1)
    return {name: sorted(set(_held_by(found, torchs, referrers)), key=_order)[:_MOST] for name, found in held.items()}


def _order(name: str) -> tuple[bool, str]:
    """Names of modules first: they lead to the place, the classes of objects do not."""
    return name.partition(".")[0] not in sys.modules, name


class _Referrers:
    """``gc.get_referrers`` of many objects at once, as it looks through all objects that Python knows each time."""

    def __init__(self) -> None:
        self._objects: dict[int, Any] = {}  # so that their ids stay theirs
        self._of: dict[int, list[Any]] = {}

    def look(self, values: Iterable[Any], far: int) -> None:
        """Also at what refers to what refers to them, and so on."""
        asked = {id(value): value for value in values if id(value) not in self._of}
        if not asked or far == 0:
            return
        own = {id(asked), id(self._objects), id(self._of), *map(id, self._of.values())}
        self._objects.update(asked)
        self._of.update((key, []) for key in asked)
        for holder in gc.get_referrers(*asked.values()):
            if id(holder) not in own and not isinstance(holder, (types.FrameType, PatchedOp)):
                for key in asked.keys() & set(map(id, gc.get_referents(holder))):
                    self._of[key].append(holder)
        steps = [holder for key in asked for holder in self._of[key] if _is_step(holder)]
        del asked
        self.look(steps, far - 1)

    def of(self, value: Any) -> list[Any]:
        self.look([value], 1)
        return self._of[id(value)]


def _is_step(holder: Any) -> bool:
    """Whether it may be found by a name of what refers to it."""
    if isinstance(holder, dict):
        return "__spec__" not in holder
    return isinstance(holder, (list, tuple, types.CellType, functools.partial))


def _held_by(originals: list[Any], torchs: dict[int, set[int]], referrers: _Referrers) -> Iterator[str]:
    for original in originals:
        for holder in referrers.of(original):
            if holder is not originals and id(holder) not in torchs[id(original)]:
                yield from _named(holder, original, referrers, _FAR)


def _named(holder: Any, held: Any, referrers: _Referrers, far: int) -> Iterator[str]:
    """The names by which people find ``held`` in ``holder``."""
    if isinstance(holder, dict):
        yield from _in_dict(holder, held, referrers, far)
    elif isinstance(holder, (list, tuple)):
        yield from _in_sequence(holder, held, referrers, far)
    elif isinstance(holder, types.CellType):
        yield from _in_closure(holder, referrers)
    elif isinstance(holder, functools.partial):
        yield from (f"{name} (a functools.partial)" for name in _names_of(holder, referrers, far))
    elif _has_attributes(holder):  # Python 3.11 keeps them in the instance itself
        yield from (f"{type(holder).__name__}.{key}" for key, value in vars(holder).items() if value is held)


def _in_dict(holder: dict[Any, Any], held: Any, referrers: _Referrers, far: int) -> Iterator[str]:
    keys = [key for key, value in list(holder.items()) if value is held]
    module = holder.get("__name__")
    if isinstance(module, str) and "__spec__" in holder:
        # torch's own names are its business: those of its namespaces are patched.
        if not _of_torch(module):
            yield from (f"{module}.{key}" for key in keys)
        return
    for owner in referrers.of(holder):
        if _has_attributes(owner) and vars(owner) is holder:
            yield from (f"{type(owner).__name__}.{key}" for key in keys)
    yield from (f"{name}[{key!r}]" for name in _names_of(holder, referrers, far) for key in keys)


def _in_sequence(holder: list[Any] | tuple[Any, ...], held: Any, referrers: _Referrers, far: int) -> Iterator[str]:
    at = next((i for i, value in enumerate(holder) if value is held), 0)
    yield from (f"{name}[{at}]" for name in _names_of(holder, referrers, far))
    for function in referrers.of(holder):
        if (
            isinstance(function, types.FunctionType)
            and function.__defaults__ is holder
            and not _of_torch(function.__module__)
        ):
            yield f"a default argument of {function.__module__}.{function.__qualname__}"


def _in_closure(cell: types.CellType, referrers: _Referrers) -> Iterator[str]:
    for cells in referrers.of(cell):
        for function in referrers.of(cells) if isinstance(cells, tuple) else ():
            if isinstance(function, types.FunctionType) and not _of_torch(function.__module__):
                yield f"a closure of {function.__module__}.{function.__qualname__}"


def _names_of(value: Any, referrers: _Referrers, far: int) -> Iterator[str]:
    """The names of a container."""
    if far == 0:
        return
    for holder in referrers.of(value):
        if isinstance(holder, (dict, list, tuple)) or _has_attributes(holder):
            yield from _named(holder, value, referrers, far - 1)


def _has_attributes(value: Any) -> bool:
    if isinstance(value, (types.ModuleType, type, types.FunctionType, types.FrameType, functools.partial, PatchedOp)):
        return False
    return isinstance(getattr(value, "__dict__", None), dict)


def _of_torch(module: str | None) -> bool:
    return (module or "").partition(".")[0] in ("torch", "habana_mp")
