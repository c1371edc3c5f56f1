"""List files: read from disk, and merged with the lists of a preset.

The form of a file is read by src/policy/op_list.cpp. Knows nothing of convert and of what a list is for.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

import habana_mp._core as core
from habana_mp._policy.read_file import read_file, shown

# A name, with the low dtype that it is for behind @ if it is for one alone, and where it was listed; file and line are "" and 0 for a
# name given in code.
Entry = tuple[str, str, int]
ListPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]


class ListFile(NamedTuple):
    """One list as a file gives it: the names to have, or, where ``edits``, those to add to and take out of a default (D21)."""

    path: str
    edits: bool
    named: list[Entry]
    removed: list[Entry]


def read_list(path: ListPath) -> ListFile:
    """Raises OSError with the path (D24), or ValueError with the path, and the line that is wrong (D20, D21)."""
    name = os.fsdecode(path)
    return parse_list(read_file(name, core.MAX_LIST_BYTES), shown(name))


def parse_list(data: bytes, path: str) -> ListFile:
    """The list that a file holds; ``path`` is for messages. Raises ValueError with ``path:line`` for the first mistake."""
    edits, ops = core.parse_op_list(data, path)
    named = [(name, path, line) for name, line, removed in ops if not removed]
    removed = [(name, path, line) for name, line, removed in ops if removed]
    return ListFile(path, edits, named, removed)


def whole_op(name: str) -> str:
    """``pow`` of ``pow.Tensor_Scalar``, ``pow@float16`` of ``pow.Tensor_Scalar@float16``."""
    op, at, low = name.partition("@")
    return op.partition(".")[0] + at + low


def for_each_low_dtype(name: str) -> list[str]:
    """An entry as one of each low dtype: ``mm`` is ``mm@bfloat16`` and ``mm@float16``, and these are themselves."""
    return [name] if "@" in name else [f"{name}@{low}" for low in core.LOW_DTYPES]


def less(entries: Iterable[Entry], names: Iterable[str], ops: Iterable[str]) -> list[Entry]:
    """Entries without these names, and without these ops and their overloads. What goes for one low dtype stays for the other."""
    names = {each for name in names for each in for_each_low_dtype(name)}
    ops = {each for op in ops for each in for_each_low_dtype(op)}
    kept: list[Entry] = []
    for name, file, line in entries:
        each_dtype = for_each_low_dtype(name)
        stays = [each for each in each_dtype if each not in names and whole_op(each) not in ops]
        kept += [(each, file, line) for each in ([name] if stays == each_dtype else stays)]
    return kept


def merged(default: list[Entry], file: ListFile | None, other: ListFile | None = None) -> list[Entry]:
    """A list after the files: ``file`` replaces or edits it, and what ``other`` claims leaves its default (D6, D21)."""
    if file and not file.edits:
        return file.named
    claimed = [whole_op(name) for name, _, _ in other.named] if other else []
    removed = [name for name, _, _ in file.removed] if file else []
    kept = less(default, removed, claimed)
    return [*file.named, *kept] if file else kept
