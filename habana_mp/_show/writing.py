"""Writes the files that users ask for."""

from __future__ import annotations

import json
import math
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, TypeVar

_Content = TypeVar("_Content", str, bytes)


def written(content: _Content, path: str | os.PathLike[str] | None) -> _Content:
    """The text or the bytes, which a file gets too if there is a path.

    An OSError has the path. Python gives it to those of opening a file, and not to those of writing, such as of a full disk.
    """
    if path is not None:
        try:
            Path(path).write_bytes(content.encode() if isinstance(content, str) else content)
        except OSError as error:
            error.filename = os.fspath(path) if error.filename is None else error.filename
            raise
    return content


def plain(value: Any) -> Any:
    """Values for JSON, where a number that is not finite is None."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Document(ABC):
    """A result that is written as JSON and as a page for the browser, and that a notebook shows as the page."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values."""

    @abstractmethod
    def _page(self) -> str: ...

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return ``to_dict`` as JSON text.

        Args:
            path: a file that gets the text, too.

        Raises:
            OSError: the file cannot be written.
        """
        return written(json.dumps(self.to_dict(), indent=1), path)

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return one HTML page that needs no network.

        Args:
            path: a file that gets the page, too.

        Raises:
            OSError: the file cannot be written.
        """
        return written(self._page(), path)

    def _repr_html_(self) -> str:
        from habana_mp._show.html import framed

        return framed(self.to_html())
