"""Who holds a plain op of torch from before ``convert``: a name bound by ``from torch import mm``, a table of activations, an attribute.

Asked only where a call went past the conversion. Looks at what Python's garbage collector knows; knows nothing of policies.
"""

from __future__ import annotations

import functools
import gc
import types
from collections.abc import Iterable, Iterator
from typing import Any

from habana_mp import _core
from habana_mp._convert import ops
from habana_mp._patched import PatchedOp

_MOST = 8  # holders that are named for one op
_FAR = 3  # steps from a holder to something that has a name


def holders(names: Iterable[str]) -> dict[str, list[str]]:
    """Where the functions of these ops are held, outside of torch's own namespaces: "transformers.activations.ACT2FN['gelu']"."""
    wanted = {name: {name}.union(*_core.candidates(name)) for name in names}
    plain = [(original, {home.name for home in places}) for original, places in ops()]
    places = {id(original): {id(home.owner.__dict__) for home in homes} for original, homes in ops()}
    return {
        name: sorted(set(_held_by([original for original, own in plain if own & spellings], places)))[:_MOST]
        for name, spellings in wanted.items()
    }


def _held_by(originals: list[Any], places: dict[int, set[int]]) -> Iterator[str]:
    ours = {id(originals), id(places)}
    for original in originals:
        for holder in gc.get_referrers(original):
            if (
                id(holder) in ours
                or id(holder) in places[id(original)]
                or isinstance(holder, (types.FrameType, PatchedOp))
            ):
                continue
            yield from _named(holder, original, _FAR)


def _named(holder: Any, held: Any, far: int) -> Iterator[str]:
    """The names by which people find ``held`` in ``holder``."""
    if isinstance(holder, dict):
        yield from _in_dict(holder, held, far)
    elif isinstance(holder, (list, tuple)):
        yield from _in_sequence(holder, held, far)
    elif isinstance(holder, types.CellType):
        yield from _in_closure(holder)
    elif isinstance(holder, functools.partial):
        yield from (f"{name} (a functools.partial)" for name in _names_of(holder, far))
    elif _has_attributes(holder):  # Python 3.11 keeps them in the instance itself
        yield from (f"{type(holder).__name__}.{key}" for key, value in vars(holder).items() if value is held)


def _in_dict(holder: dict[Any, Any], held: Any, far: int) -> Iterator[str]:
    keys = [key for key, value in list(holder.items()) if value is held]
    module = holder.get("__name__")
    if isinstance(module, str) and "__spec__" in holder:
        # torch's own names are its business: those of its namespaces are patched.
        if not _of_torch(module):
            yield from (f"{module}.{key}" for key in keys)
        return
    for owner in gc.get_referrers(holder):
        if _has_attributes(owner) and vars(owner) is holder:
            yield from (f"{type(owner).__name__}.{key}" for key in keys)
    yield from (f"{name}[{key!r}]" for name in _names_of(holder, far) for key in keys)


def _in_sequence(holder: list[Any] | tuple[Any, ...], held: Any, far: int) -> Iterator[str]:
    at = next((i for i, value in enumerate(holder) if value is held), 0)
    yield from (f"{name}[{at}]" for name in _names_of(holder, far))
    for function in gc.get_referrers(holder):
        if (
            isinstance(function, types.FunctionType)
            and function.__defaults__ is holder
            and not _of_torch(function.__module__)
        ):
            yield f"a default argument of {function.__module__}.{function.__qualname__}"


def _in_closure(cell: types.CellType) -> Iterator[str]:
    for cells in gc.get_referrers(cell):
        for function in gc.get_referrers(cells) if isinstance(cells, tuple) else ():
            if isinstance(function, types.FunctionType) and not _of_torch(function.__module__):
                yield f"a closure of {function.__module__}.{function.__qualname__}"


def _names_of(value: Any, far: int) -> Iterator[str]:
    """The names of a container."""
    if far == 0:
        return
    for holder in gc.get_referrers(value):
        if isinstance(holder, (dict, list, tuple)) or _has_attributes(holder):
            yield from _named(holder, value, far - 1)


def _has_attributes(value: Any) -> bool:
    if isinstance(value, (types.ModuleType, type, types.FunctionType, types.FrameType, functools.partial, PatchedOp)):
        return False
    return isinstance(getattr(value, "__dict__", None), dict)


def _of_torch(module: str | None) -> bool:
    return (module or "").partition(".")[0] in ("torch", "habana_mp")
