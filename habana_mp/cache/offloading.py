"""The float32 weights of a model, moved to a file and back (src/weights/offloaded_memory.h)."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import tempfile
from pathlib import Path
from typing import IO, NamedTuple

import torch

import habana_mp._core as _core
from habana_mp.cache.looks import look_again

_MOST_NAMES = 3


class Offloaded(NamedTuple):
    """The result of ``offload``.

    Example:
        >>> model = torch.nn.Linear(1024, 1024)
        >>> hmp.cache.offload(model).weights
        1
        >>> hmp.cache.restore(model)
    """

    weights: int
    """The number of weights of the model that are in a file now."""
    bytes: int
    """Their size in bytes, which memory no longer holds."""
    left: dict[str, str]
    """Large float32 weights that stay in memory, by name, and the reason: ``shared`` or ``foreign`` as in ``CacheInfo.invalidated``,
    because every use casts and so reads them; ``mapped`` (they are in a file already, as after ``torch.load(mmap=True)``); ``device``
    (they are not in the memory of the CPU).
    """

    def __repr__(self) -> str:
        left = ", ".join(self._left_for(reason) for reason in dict.fromkeys(self.left.values()))
        return f"Offloaded(weights={self.weights}, bytes={self.bytes}, left={{{left}}})"

    def _left_for(self, reason: str) -> str:
        names = [name for name, why in self.left.items() if why == reason]
        weights = f"{len(names)} weights, such as " if len(names) > _MOST_NAMES else ""
        return f"{reason}: {weights}{', '.join(names[:_MOST_NAMES])}"


def offload(model: torch.nn.Module, folder: str | os.PathLike[str] | None = None) -> Offloaded:
    """Move the float32 weights of a model to a temporary file, so that memory holds only their cast copies. For models in inference.

    The numbers do not change, bit for bit, and the parameters stay the same objects at the same memory addresses. The system reads a page
    of the file when a program reads that part of a weight, and may drop it again. ``state_dict()``, ``torch.save``, aliases, compiled code
    and training work as before. New values of a weight stay in memory; another call moves them again. Copies in the cache stay valid.
    ``restore`` and ``hmp.revert()`` move the weights back.

    Weights of fewer than 65536 numbers stay in memory. The file has no name, and the system deletes it with the last of its weights or at
    the end of the process. Nothing may write to the weights during the call.

    Args:
        model: the model. Its weights have to be in the memory of the CPU.
        folder: a folder on a disk with room for the weights. The default is that for temporary files, or ``/var/tmp`` if that one is in
            memory (tmpfs).

    Raises:
        TypeError: ``model`` is not a module.
        ValueError: the folder is in memory, or the model is on another device.
        OSError: the file cannot be made or written, for example on a full disk. The weights then stay in memory.

    Example:
        >>> model = torch.nn.Linear(1024, 1024)
        >>> hmp.cache.offload(model)
        Offloaded(weights=1, bytes=..., left={})
        >>> hmp.cache.restore(model)
    """
    weights = {name: (p, _core.offload_state(p)) for name, p in _parameters(model, "offload")}
    unsure = {name for name, (_, state) in weights.items() if state in ("shared", "foreign")}

    def are_left() -> bool:
        weights.update({name: (weights[name][0], _core.offload_state(weights[name][0])) for name in unsure})
        unsure.intersection_update(name for name in unsure if weights[name][1] in ("shared", "foreign"))
        return bool(unsure)

    look_again(are_left)
    states = {state for _, state in weights.values()}
    if "device" in states and states <= {"device", "other"}:
        name, p = next((name, p) for name, (p, state) in weights.items() if state == "device")
        raise ValueError(f"hmp.cache.offload moves weights out of the CPU's memory; '{name}' is on {p.device}")
    new = [p for p, state in weights.values() if state in ("ready", "written")]
    if new:
        _move(new, folder)
    for p, state in weights.values():
        if state == "offloaded":
            _core.drop_pages(p)
    moved = [p for p, state in weights.values() if state in ("ready", "written", "offloaded")]
    left = {name: state for name, (_, state) in weights.items() if state in ("shared", "foreign", "mapped", "device")}
    return Offloaded(len(moved), sum(map(_core.offloaded_bytes, moved)), left)


def restore(model: torch.nn.Module) -> None:
    """Move the weights that ``offload`` has moved back into memory. ``hmp.revert()`` does this for all models.

    Args:
        model: the model.

    Raises:
        TypeError: ``model`` is not a module.
        OSError: memory is short, or the disk fails. The weights that are not back stay in the file and keep working.

    Example:
        >>> hmp.cache.restore(model)
    """
    for _, p in _parameters(model, "restore"):
        _core.restore_pages(p)


def _parameters(model: torch.nn.Module, function: str) -> list[tuple[str, torch.nn.Parameter]]:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"hmp.cache.{function} takes a torch.nn.Module, not {type(model).__name__}")
    return list(model.named_parameters())


def _move(weights: list[torch.nn.Parameter], folder: str | os.PathLike[str] | None) -> None:
    sizes = [_core.offloaded_bytes(p) for p in weights]
    offsets = [0, *itertools.accumulate(sizes)]
    file, place = _file_in(folder)
    with file:
        number = file.fileno()
        mapped: list[torch.nn.Parameter] = []
        try:
            _check_room_for_mappings(len(weights))
            os.posix_fallocate(number, 0, offsets[-1])
            for p, offset in zip(weights, offsets, strict=False):
                _core.write_pages(p, number, offset)
            # Only what the disk has can be dropped.
            os.fsync(number)
            for p, offset in zip(weights, offsets, strict=False):
                _core.map_pages(p, number, offset)
                mapped.append(p)
        except BaseException as error:
            # Where memory is short for this too, they stay in the file, and work.
            with contextlib.suppress(OSError):
                for p in mapped:
                    _core.restore_pages(p)
            if not isinstance(error, OSError):
                raise
            why = error.errno or errno.EIO
            text = f"hmp.cache.offload cannot move {offsets[-1]} bytes there: {error.strerror}"
            raise OSError(why, text, place) from None
        # What was written is still in the system's cache.
        os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
        for p in weights:
            _core.drop_pages(p)


def _check_room_for_mappings(weights: int) -> None:
    """Before anything is mapped: to give memory back takes some, too."""
    taken = len(Path("/proc/self/maps").read_bytes().splitlines())
    limit = int(Path("/proc/sys/vm/max_map_count").read_text())
    if taken + 2 * weights + 16 > limit:
        raise OSError(
            errno.ENOMEM,
            f"{weights} weights take {2 * weights} memory mappings; this process has {taken}, vm.max_map_count is {limit}",
        )


def _file_in(folder: str | os.PathLike[str] | None) -> tuple[IO[bytes], str]:
    """A file without a name, on a disk, and its folder."""
    folders = [tempfile.gettempdir(), "/var/tmp"] if folder is None else [os.fspath(folder)]  # noqa: S108
    for place in folders:
        try:
            file = tempfile.TemporaryFile(dir=place, buffering=0)  # noqa: SIM115 - the caller closes it
        except OSError as error:
            why = error.errno or errno.EIO
            raise OSError(why, f"hmp.cache.offload cannot make a file there: {os.strerror(why)}", place) from None
        if not _core.lies_in_memory(file.fileno()):
            return file, place
        file.close()
    raise ValueError(
        f"hmp.cache.offload: {' and '.join(folders)} lies in memory (tmpfs), so a file there frees none; "
        "name a folder on a disk: hmp.cache.offload(model, folder=...)"
    )
