"""Functions that other tasks interrupt, decorated with what is in force on a thread: ``disable_casts`` and ``autocast``."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch

from habana_mp._torch_private import DECORATORS


def decorated_async(decorator: str, make: Callable[[], Any], function: Any) -> Any:
    """A coroutine function that is inside ``make()`` while it runs and outside while it waits: other tasks share its thread.

    None for a function that torch's own decorator can serve. Raises TypeError for an async generator, and for what is no function.
    """
    if not callable(function):
        raise TypeError(f"{decorator} decorates functions, not {function!r}")
    if inspect.isasyncgenfunction(function):
        raise TypeError(f"{decorator} cannot decorate an async generator: use it as a context manager inside")
    if not any(map(inspect.iscoroutinefunction, (function, type(function).__call__))):
        return _traced(make, function) if torch.compiler.is_dynamo_compiling() else None

    @types.coroutine
    def steps(coroutine: Any) -> Any:
        return (yield from coroutine.__await__())

    drive = types.coroutine(DECORATORS.in_steps(make, steps))

    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await drive(function(*args, **kwargs))

    return wrapper


def _traced(make: Callable[[], Any], function: Any) -> Any:
    """From torch 2.15 on, Dynamo cannot trace torch's decorator."""
    if inspect.isgeneratorfunction(function):
        return None

    def inside(*args: Any, **kwargs: Any) -> Any:
        with make():
            return function(*args, **kwargs)

    return functools.wraps(function)(inside) if hasattr(function, "__name__") else inside
