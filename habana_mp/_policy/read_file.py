"""Reads the files that users give: lists, policies, reports. The one place that knows what a file may be."""

from __future__ import annotations

import os
import stat

_MIB = 1 << 20


class FileError(ValueError):
    """What is wrong with the content of a file: a line of the message for each mistake."""

    def __init__(self, path: str | os.PathLike[str], *mistakes: str) -> None:
        self.path, self.mistakes = shown(path), mistakes
        super().__init__("\n".join(f"{self.path}: {mistake}" for mistake in mistakes))


def read_file(path: str | os.PathLike[str], most: int) -> bytes:
    """The bytes of a file, read once: another process may write it meanwhile. A device is read up to the limit.

    Raises:
        OSError: with the path.
        ValueError: for a NUL in the path. FileError: for a file of over ``most`` bytes, and for a pipe that nobody writes to.
    """
    name = os.fspath(path)
    if "\0" in name:
        raise ValueError(f"{name!r} is not a path: it has a NUL character")
    with open(name, "rb", opener=_open) as file:
        os.set_blocking(file.fileno(), True)
        data = file.read(most + 1)
        if not data and stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
            raise FileError(name, "no process writes to this pipe")
    if len(data) > most:
        raise FileError(name, f"the file is larger than {most // _MIB} MiB")
    return data


def read_text(path: str | os.PathLike[str], most: int) -> str:
    """The text of a UTF-8 file, with or without a byte-order mark. Raises as ``read_file`` does."""
    try:
        return read_file(path, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(path, str(error)) from None


def _open(path: str, flags: int) -> int:
    """A named pipe would wait for its first writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def shown(path: str | os.PathLike[str]) -> str:
    """A path for messages: its bytes may be no UTF-8."""
    return os.fspath(path).encode(errors="backslashreplace").decode()
