"""The end of a message about a name or an argument that is not known: the names that are near it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")


def did_you_mean(names: Iterable[str]) -> str:
    """``. Did you mean 'a' or 'b'?``, and "" without names."""
    listed = " or ".join(map(repr, names))
    return f". Did you mean {listed}?" if listed else ""


def near(text: str, known: Iterable[str], *, most: int = 3, cutoff: float = 0.6) -> str:
    """``did_you_mean`` with the nearest of the known names."""
    from difflib import get_close_matches

    return did_you_mean(get_close_matches(text, [*known], n=most, cutoff=cutoff))


def knows_arguments(**meant: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """A decorator: the TypeError about an unknown argument by keyword names the one that ``meant`` has for it, or the nearest one."""

    def decorated(function: Callable[_P, _R]) -> Callable[_P, _R]:
        known = inspect.signature(function).parameters

        @functools.wraps(function)
        def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            for name in (each for each in kwargs if each not in known):
                hint = did_you_mean([meant[name]]) if name in meant else near(name, known, most=1)
                raise TypeError(f"{function.__name__} has no argument {name!r}: accepted are {', '.join(known)}{hint}")
            return function(*args, **kwargs)

        return checked

    return decorated
