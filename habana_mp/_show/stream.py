"""Text on sys.stdout and sys.stderr, which are whatever object the program has put there.

Any object with ``write`` will do. The rest of a file may be missing or raise (``flush``, ``isatty``, ``closed``, ``encoding``), and nothing of
that reaches the program.
"""

from __future__ import annotations

import contextlib
import io
import sys
from typing import Any


def say(text: str, *, err: bool = False) -> bool:
    """Write a line, to Python's first stream if the program's own raises. Returns whether one took it."""
    name = "stderr" if err else "stdout"
    for stream in (getattr(sys, name), getattr(sys, f"__{name}__")):
        with contextlib.suppress(Exception):
            if isinstance(stream, io.TextIOWrapper) and stream is getattr(sys, name):
                import click

                click.echo(text, err=err)  # also what an encoding lacks
            else:
                stream.write(f"{text}\n")
                flush(stream)
            return True
    return False


def flush(*streams: Any) -> None:
    for stream in streams:
        with contextlib.suppress(Exception):
            stream.flush()


def is_terminal(stream: Any) -> bool:
    """Whether it is a real stream, and that one."""
    with contextlib.suppress(ValueError):  # closed
        return isinstance(stream, io.TextIOWrapper) and stream.isatty()
    return False


def text_of(error: BaseException) -> str:
    """Type and text; some errors have none."""
    with contextlib.suppress(Exception):
        return f"{type(error).__name__}: {error}".encode(errors="backslashreplace").decode()
    return type(error).__name__
