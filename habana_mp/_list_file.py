"""List files: read from disk, merged with the lists of a preset, and checked for names that torch does not have.

The form of a file is read by src/policy/op_list.cpp. Knows nothing of convert and of what a list is for.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from habana_mp import _core as core

# A name, with the low dtype that it is for behind @ if it is for one alone, and where it was listed; file and line are "" and 0 for a
# name given in code.
Entry = tuple[str, str, int]
ListPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]

# Looking for near names takes milliseconds each: a file that is no list at all must not take minutes.
_MOST_SUGGESTIONS = 20


class ListFile(NamedTuple):
    """One list as a file gives it: the names to have, or, where ``edits``, those to add to and take out of a default (D21)."""

    path: str
    edits: bool
    named: list[Entry]
    removed: list[Entry]


def read_list(path: ListPath) -> ListFile:
    """Raises OSError with the path (D24), or ValueError with ``path:line`` (D20, D21)."""
    name = os.fsdecode(path)
    with Path(name).open("rb") as file:
        data = file.read(core.MAX_LIST_BYTES + 1)
    return parse_list(data, name.encode(errors="backslashreplace").decode())


def parse_list(data: bytes, shown: str) -> ListFile:
    """The list that a file holds; ``shown`` is its path for messages. Raises ValueError with ``path:line`` for the first mistake."""
    edits, ops = core.parse_op_list(data, shown)
    named = [(name, shown, line) for name, line, removed in ops if not removed]
    removed = [(name, shown, line) for name, line, removed in ops if removed]
    return ListFile(shown, edits, named, removed)


def whole_op(name: str) -> str:
    """``pow`` of ``pow.Tensor_Scalar``, ``pow@float16`` of ``pow.Tensor_Scalar@float16``."""
    op, at, low = name.partition("@")
    return op.partition(".")[0] + at + low


def for_each_low_dtype(name: str) -> list[str]:
    """What an entry says of each low dtype: ``mm`` is ``mm@bfloat16`` and ``mm@float16``, and these are themselves."""
    return [name] if "@" in name else [f"{name}@{low}" for low in core.LOW_DTYPES]


def less(entries: Iterable[Entry], names: Iterable[str], ops: Iterable[str]) -> list[Entry]:
    """Entries without these names, and without these ops and their overloads. What goes for one low dtype stays for the other."""
    names = {each for name in names for each in for_each_low_dtype(name)}
    ops = {each for op in ops for each in for_each_low_dtype(op)}
    kept: list[Entry] = []
    for name, file, line in entries:
        said = for_each_low_dtype(name)
        stays = [each for each in said if each not in names and whole_op(each) not in ops]
        kept += [(each, file, line) for each in ([name] if stays == said else stays)]
    return kept


def merged(default: list[Entry], given: ListFile | None, other: ListFile | None = None) -> list[Entry]:
    """A list after the files: ``given`` replaces or edits it, and what ``other`` claims leaves its default (D6, D21)."""
    if given and not given.edits:
        return given.named
    claimed = [whole_op(name) for name, _, _ in other.named] if other else []
    removed = [name for name, _, _ in given.removed] if given else []
    kept = less(default, removed, claimed)
    return [*given.named, *kept] if given else kept


def check_known(entries: Iterable[Entry], where: str, *, strict: bool) -> None:
    """One warning, or with ``strict`` a ValueError, for all names of a list that torch does not have (D22)."""
    from habana_mp._homes import known_names

    known = known_names()
    named = [(name.partition("@")[0], file, line) for name, file, line in entries]
    unknown = [entry for entry in named if entry[0] not in known]
    if not unknown:
        return
    import torch

    lines = []
    for number, (name, file, line) in enumerate(unknown):
        place = f"{file}:{line}: " if line else f"{file}: " if file else ""
        near = nearest(name, known) if number < _MOST_SUGGESTIONS else []
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        lines.append(f"{place}{name!r} is no op of torch {torch.__version__}{hint}")
    text = "\n".join(lines)
    if strict:
        raise ValueError(text)
    warn(f"{where} has names that decide nothing:\n{text}")


def nearest(name: str, known: frozenset[str]) -> list[str]:
    from difflib import get_close_matches

    last = name.rpartition(".")[2]
    if last != name and last in known:  # torch.relu
        return [last]
    if name.lower() in known:  # the class of a module: ReLU
        return [name.lower()]
    # Names of C++ helpers and overloads are near only to what looks like one.
    pool = [
        other for other in known if ("." in name or "." not in other) and other.startswith("_") <= name.startswith("_")
    ]
    return get_close_matches(name, sorted(pool), n=3, cutoff=0.7)


def warn(text: str) -> None:
    """A warning that shows the line of the user's code that called into this package."""
    package = str(Path(__file__).parent) + os.sep
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, UserWarning, stacklevel=level)
