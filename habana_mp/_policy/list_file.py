"""List files: read from disk, and merged with the lists of a policy; and what an edit does to these.

The form of a file is read by src/policy/op_list.cpp. Knows nothing of convert and of what a list is for.
"""

from __future__ import annotations

import functools
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import NamedTuple

import habana_mp._core as core
from habana_mp._core import Entry
from habana_mp._policy.edit import ALL_LISTS, Edit, for_each_low_dtype
from habana_mp._policy.read_file import read_file, shown

ListPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]


class ListFile(NamedTuple):
    """One list as a file gives it: the entries to have, or, where ``edits``, those to add to and take out of a default."""  # (D21)

    path: str
    edits: bool
    named: list[Entry]
    removed: list[Entry]


def read_list(path: ListPath, title: str = "") -> ListFile:
    """The file of a list, "lower" for example. Raises OSError with the path, or ValueError with the path, and the line that is wrong."""  # (D24, D20, D21)
    name = os.fsdecode(path)
    return parse_list(read_file(name, core.MAX_LIST_BYTES), shown(name), title)


def read_argument(path: ListPath, title: str, argument: str, for_folders: str) -> ListFile:
    """As ``read_list``, of a path that the user gave as an argument: errors name it, and what takes a folder."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError(
            f"{argument} takes the path of a list file, not {path!r:.80}. Policy.from_ops takes lists of names"
        )
    try:
        return read_list(path, title)
    except OSError as error:
        more = f"{argument} takes the path of a list file" + (
            f", and {for_folders}" if isinstance(error, IsADirectoryError) else ""
        )
        raise OSError(error.errno, f"{error.strerror} ({more})", error.filename) from None


def parse_list(data: bytes, path: str, title: str = "") -> ListFile:
    """The list that a file holds; ``path`` is for messages. Raises ValueError with ``path:line`` for the first mistake."""
    edits, named, removed, _ = core.parse_op_list(data, path, title)
    return ListFile(path, edits, named, removed)


def less(entries: Iterable[Entry], leaves: Callable[[Entry, str], bool]) -> list[Entry]:
    """Entries without what ``leaves``, which is asked of each with a low dtype. What goes for one low dtype stays for the other."""
    kept: list[Entry] = []
    for entry in entries:
        lows = for_each_low_dtype(entry)
        stays = [low for low in lows if not leaves(entry, low)]
        kept += [entry] if len(stays) == len(lows) else [entry.replaced(low_dtype=low) for low in stays]
    return kept


class Claims:
    """The entries of an author: what another's lists say of their ops, for the same modules, leaves these lists, by whatever name they
    say it.

    ``rsub`` leaves where the author names ``sub``, which decides it then; ``sub`` stays where he names ``rsub``. The ops that a named one
    is made of stay, unless ``with_insides``: they would decide an op that the author takes out of the lists. With ``whole`` an overload
    claims its op.
    """  # (D6, D39)

    def __init__(self, entries: Iterable[Entry], *, whole: bool = False, with_insides: bool = False) -> None:
        self._own: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        self._insides: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        for entry in entries:
            op = entry.base if whole else entry.op
            for low in for_each_low_dtype(entry):
                self._own[entry.modules, low].add(op)
                if with_insides and not entry.modules:
                    inside = {*chain(*core.candidates(op))} - {*chain(*core.dispatched_candidates(op))}
                    self._insides[entry.modules, low] |= inside

    def __call__(self, entry: Entry, low: str) -> bool:
        where = entry.modules, low
        if where not in self._own:
            return False
        return entry.base in self._insides[where] or not _asked_for(entry.op, entry.base).isdisjoint(self._own[where])

    def by_name(self, entry: Entry, low: str) -> bool:
        return entry.op in self._own.get((entry.modules, low), ())


@functools.lru_cache(maxsize=4096)  # a search edits lists a hundred times
def _asked_for(op: str, base: str) -> frozenset[str]:
    """The names under which the lists are asked for an op, by either front end."""
    return frozenset([op, base, *chain(*core.candidates(base)), *chain(*core.dispatched_candidates(base))])


def after_files(entries: Iterable[Entry], files: Mapping[str, ListFile], *, same_author: bool = False) -> list[Entry]:
    """Entries of a policy after files by the lists that they are: each replaces or edits its list, and what it names leaves the others.

    What a file takes out leaves its list by all names, and by its own alone if the ``same_author`` has named the others. In the promote list,
    which is asked last, a name may stay that another list has, too: it decides nothing.
    """  # (D6, D21, F50)
    named = [entry for file in files.values() for entry in file.named]
    removed = {title: Claims(file.removed, with_insides=True) for title, file in files.items()}
    claims = {title: Claims([each for each in named if each.list != title], whole=True) for title in ALL_LISTS}

    def leaves(entry: Entry, low: str) -> bool:
        file, others = files.get(entry.list), claims[entry.list]
        if file is not None:
            taken_out = removed[entry.list].by_name if same_author else removed[entry.list]
            if not file.edits or taken_out(entry, low):
                return True
        is_last = entry.list == "promote" and not entry.modules
        return others(entry, low) and not (is_last and others.by_name(entry, low))

    return [*named, *less(entries, leaves)]


def after_edits(entries: Iterable[Entry], edits: Iterable[Edit]) -> list[Entry]:
    """Entries of a policy after edits; a later one takes precedence."""
    kept = [*entries]
    for entry, removed in edits:
        kept = less(kept, Claims([entry], with_insides=removed))
        kept += [] if removed else [entry]
    return kept
