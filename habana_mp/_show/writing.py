"""Writes the files that users ask for."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def written(text: str, path: str | os.PathLike[str] | None) -> str:
    """The text, which a file gets too if there is a path. Raises OSError with the path."""
    if path is not None:
        with naming(path):
            Path(path).write_text(text, encoding="utf-8")
    return text


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """An OSError has the path. Python gives it to those of opening a file, and not to those of writing, such as of a full disk."""
    try:
        yield
    except OSError as error:
        error.filename = os.fspath(path) if error.filename is None else error.filename
        raise
