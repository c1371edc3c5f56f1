"""One short line of a value: the ``repr`` of a result, for a prompt and for lists of results, and a value of the user's in an error."""

from __future__ import annotations

from abc import ABC, abstractmethod

_MOST = 80


def brief(value: object) -> str:
    """The type, shape and dtype of a tensor or an array, else the beginning of its ``repr``."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and dtype is not None and not isinstance(value, type):
        return f"a {type(value).__name__} of shape {[*shape]} and dtype {dtype}"
    line, *more = repr(value).split("\n", 1)
    return f"{line[:_MOST]}..." if more or len(line) > _MOST else line


class Short(ABC):
    """A result that is shown as ``<Name: line>``, and in full by ``print``. A dataclass of it needs ``repr=False``."""

    __slots__ = ()

    @abstractmethod
    def _line(self) -> str:
        """What it is, in a few words."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._line()}>"
