"""``repr`` of a result: one short line, for a prompt and for lists of results. ``print`` shows all of it."""

from __future__ import annotations


class Short:
    """A result that is shown as ``<Name: line>``. A dataclass of it needs ``repr=False``."""

    __slots__ = ()

    def _line(self) -> str:
        """What it is, in a few words."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._line()}>"
