"""Functions that run without casts, whatever is in force. Unlike the end of ``disable_casts``, that of their calls ends no copy in the
weight cache.

torch.compile traces what is here, so it sets the switch by torch's own names.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import habana_mp._core as _core
from habana_mp._scope.disable_casts import CASTS_OFF, casts_off
from habana_mp._torch_private import set_autocast_enabled

_Function = Callable[..., Any]
# What was made here, to what it was made of: a second conversion finds the functions of the first.
_made: weakref.WeakKeyDictionary[_Function, _Function] = weakref.WeakKeyDictionary()


def without_casts(function: _Function) -> _Function:
    """A function whose calls run with casts off."""
    made = with_casts_off(function, True)
    _made[made] = function
    return made


def step_without_casts(step: _Function) -> _Function:
    """The step of an optimizer with casts off; its closure, which runs the model, has them as the caller has."""  # (D44)

    @functools.wraps(step)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        off = casts_off()
        if args and callable(args[0]):
            args = (with_casts_off(args[0], off), *args[1:])
        elif callable(kwargs.get("closure")):
            kwargs = {**kwargs, "closure": with_casts_off(kwargs["closure"], off)}
        with CastsSwitched(True):
            return step(self, *args, **kwargs)

    _made[run] = step
    return run


def with_casts_off(function: _Function, off: bool) -> _Function:
    """A function whose calls run with casts off, or on, whatever the caller has."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with CastsSwitched(off):
            return function(*args, **kwargs)

    return functools.update_wrapper(run, function) if hasattr(function, "__dict__") else run


class CastsSwitched:
    """Casts off, or on, in a with block. C runs in place of its methods but in traced code, as in those of ``disable_casts``."""

    def __init__(self, off: bool) -> None:
        self.off = off
        self._before = off

    def __enter__(self) -> None:
        self._before = casts_off()
        set_autocast_enabled(CASTS_OFF, self.off)

    def __exit__(self, *exc: object) -> None:
        set_autocast_enabled(CASTS_OFF, self._before)


_core.run_switch_in_c(CastsSwitched.__enter__, CastsSwitched.__exit__)


def made_of(function: _Function) -> _Function:
    """The function that one made here calls; any other as it is."""
    return _made.get(function, function)


def subclasses(kind: type) -> Iterator[type]:
    """A class and all that inherit from it, whose functions may have to run so."""
    yield kind
    direct: list[type] = type.__subclasses__(kind)
    for each in direct:
        yield from subclasses(each)
