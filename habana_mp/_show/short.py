"""``repr`` of a result: one short line, for a prompt and for lists of results. ``print`` shows all of it."""

from __future__ import annotations

from abc import ABC, abstractmethod


class Short(ABC):
    """A result that is shown as ``<Name: line>``. A dataclass of it needs ``repr=False``."""

    __slots__ = ()

    @abstractmethod
    def _line(self) -> str:
        """What it is, in a few words."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._line()}>"
