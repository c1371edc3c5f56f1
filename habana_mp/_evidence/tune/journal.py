"""What the runs of a search have measured, kept in a file, so that a search that was killed goes on from it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import reprlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from habana_mp._policy.read_file import FileError, read_text
from habana_mp._show.writing import written

_FORMAT, _VERSION = "habana_mp.tune", 3
_MOST_BYTES = 1 << 30
_SAME = 1e-4  # relative; sums on a GPU come in any order


class Journal:
    """The results of runs by what ran, in their order. Without a path they are not kept."""

    def __init__(self, path: str | os.PathLike[str] | None, settings: dict[str, Any]) -> None:
        self._path = None if path is None else Path(path)
        self._settings = json.loads(json.dumps({**settings, "torch": torch.__version__.partition("+")[0]}))
        self._results: dict[str, list[Any]] = {}
        self._sums: list[float] = []
        self._used: dict[str, int] = {}
        if self._path is not None and self._path.exists():
            self._read(self._path)
        if self._path is not None:  # before the first run, which may take long
            with self._unfinished() as unfinished:
                unfinished.touch()

    def kept(self, key: str, run: Callable[[], Any], counted: Callable[[], None]) -> Any:
        """The result of the next run of this kind: from the file, or of ``run``, which counts itself."""
        results, place = self._results.setdefault(key, []), self._used.get(key, 0)
        if place == len(results):
            results.append(run())
            self._write()
        else:
            counted()
        self._used[key] = place + 1
        return results[place]

    def check_sums(self, sums: list[float]) -> None:
        """Random sums of the results in float32, the size of these first. Raises ValueError where the step is not the one of the file."""
        size = max([abs(each) for each in (*sums[:1], *(self._sums or [])[:1])], default=0.0)
        if self._sums and any(abs(a - b) > _SAME * size for a, b in zip(sums, self._sums, strict=True)):
            raise ValueError(
                f"{self._path}: the file is of a step with other results. Use another file, or delete this one"
            )
        self._sums = sums

    def _read(self, path: Path) -> None:
        try:
            found = json.loads(read_text(path, _MOST_BYTES))
            digest = _digest(found) if isinstance(found, dict) else ""
        except (ValueError, RecursionError) as error:
            why = error.mistakes[0] if isinstance(error, FileError) else error
            raise ValueError(f"{path}: not a file of a search: {why}") from None
        if not isinstance(found, dict) or found.get("format") != _FORMAT or found.get("version") != _VERSION:
            raise ValueError(f"{path}: not a file of a search of this version of habana_mp. Use another file")
        for name, value in self._settings.items():
            if found.get(name) != value:
                there = f"{reprlib.repr(found.get(name)):.80}, not {value!r:.80}"
                raise ValueError(
                    f"{path}: the file is of a search with {name}={there}. Use another file, or delete this one"
                )
        if found.get("digest") != digest:
            raise ValueError(f"{path}: the file of a search is not complete. Delete it")
        self._sums, self._results = found["sums"], found["results"]

    def _write(self) -> None:
        if self._path is None:
            return
        found = {"format": _FORMAT, "version": _VERSION, **self._settings, "sums": self._sums, "results": self._results}
        with self._unfinished() as unfinished:
            written(json.dumps({**found, "digest": _digest(found)}), unfinished)
            unfinished.replace(self._path)

    @contextlib.contextmanager
    def _unfinished(self) -> Iterator[Path]:
        """A file beside that of the search, which takes its place: whole or not at all, as a kill may come at any time."""
        assert self._path is not None  # noqa: S101 - who calls has asked
        unfinished = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            yield unfinished
        except OSError as error:
            raise type(error)(error.errno, error.strerror, str(self._path)) from None
        finally:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)


def _digest(found: dict[str, Any]) -> str:
    """Of what was measured: it decides which lists are chosen, so a file whose numbers have changed is of no use."""
    return hashlib.sha256(json.dumps([found.get("sums"), found.get("results")]).encode()).hexdigest()
