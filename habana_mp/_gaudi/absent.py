"""Names of Habana's package that scripts import and that only its hardware or its own libraries can serve: an error when they are used, not before."""

from __future__ import annotations

import functools
from typing import Any, NoReturn


class _Absent(type):
    """The type of such a name. It may be subclassed, asked for attributes (``dtype.UINT8``) and given to isinstance, but not called."""

    _why: str

    def __getattr__(cls, name: str) -> _Absent:
        if name.startswith("__"):  # Python asks for its own names and takes the plain answer
            raise AttributeError(f"{cls.__name__}.{name}")
        return absent(f"{cls.__module__}.{cls.__qualname__}.{name}", cls._why)

    def __call__(cls, *_: Any, **__: Any) -> NoReturn:
        # Of a script's own class the name that it is derived from.
        named = next(each for each in cls.__mro__ if "_why" in vars(each))
        raise NotImplementedError(f"habana_mp.gaudi has no '{named.__module__}.{named.__qualname__}': {cls._why}")


@functools.cache
def absent(full_name: str, why: str) -> _Absent:
    """A class for ``full_name``. A call of it or of a subclass raises NotImplementedError with the name and the reason."""
    module, _, name = full_name.rpartition(".")
    return _Absent(name, (), {"__module__": module, "_why": why, "__doc__": f"Not here: {why}."})
