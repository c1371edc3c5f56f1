"""List files: read from disk, and merged with the lists of a preset. And edits of lists in code: "+layer_norm:lower", "-mm".

The form of a file is read by src/policy/op_list.cpp. Knows nothing of convert and of what a list is for.
"""

from __future__ import annotations

import functools
import itertools
import linecache
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import habana_mp._core as core
from habana_mp._policy.read_file import read_file, shown
from habana_mp._show.did_you_mean import did_you_mean, near
from habana_mp._show.units import encodable

# A name, with the low dtype that it is for behind @ if it is for one alone, and where it was listed; file and line are "" and 0 for a
# name given in code.
Entry = tuple[str, str, int]
# One that is limited to modules: the list, the name as in an entry, the pattern of paths, file and line.
Limited = tuple[str, str, str, str, int]
ListPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]


class ListFile(NamedTuple):
    """One list as a file gives it: the names to have, or, where ``edits``, those to add to and take out of a default (D21).

    ``limited`` and ``unlimited`` are the same of names that are limited to modules ("mul in *.rotary_emb"): each entry with its pattern.
    """

    path: str
    edits: bool
    named: list[Entry]
    removed: list[Entry]
    limited: Sequence[tuple[Entry, str]] = ()
    unlimited: Sequence[tuple[Entry, str]] = ()


def read_list(path: ListPath) -> ListFile:
    """Raises OSError with the path (D24), or ValueError with the path, and the line that is wrong (D20, D21)."""
    name = os.fsdecode(path)
    return parse_list(read_file(name, core.MAX_LIST_BYTES), shown(name))


def read_argument(path: ListPath, argument: str, for_folders: str) -> ListFile:
    """As ``read_list``, of a path that the user gave as an argument: errors name it, and what takes a folder."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError(
            f"{argument} takes the path of a list file, not {path!r:.80}. Policy.from_ops takes lists of names"
        )
    try:
        return read_list(path)
    except OSError as error:
        more = f"{argument} takes the path of a list file" + (
            f", and {for_folders}" if isinstance(error, IsADirectoryError) else ""
        )
        raise OSError(error.errno, f"{error.strerror} ({more})", error.filename) from None


def parse_list(data: bytes, path: str) -> ListFile:
    """The list that a file holds; ``path`` is for messages. Raises ValueError with ``path:line`` for the first mistake."""
    edits, ops = core.parse_op_list(data, path)
    plain: tuple[list[Entry], list[Entry]] = [], []
    limited: tuple[list[tuple[Entry, str]], list[tuple[Entry, str]]] = [], []
    for name, line, removed in ops:
        entry, _, modules = name.partition(" in ")
        if modules:
            limited[removed].append(((entry, path, line), modules))
        else:
            plain[removed].append((entry, path, line))
    return ListFile(path, edits, *plain, *limited)


def whole_op(name: str) -> str:
    """``pow`` of ``pow.Tensor_Scalar``, ``pow@float16`` of ``pow.Tensor_Scalar@float16``."""
    op, at, low = name.partition("@")
    return op.partition(".")[0] + at + low


def for_each_low_dtype(name: str) -> list[str]:
    """An entry as one of each low dtype: ``mm`` is ``mm@bfloat16`` and ``mm@float16``, and these are themselves."""
    return [name] if "@" in name else [f"{name}@{low}" for low in core.LOW_DTYPES]


def less(entries: Iterable[Entry], leaves: Callable[[str, str], bool]) -> list[Entry]:
    """Entries without what ``leaves``, which is asked of an op and a low dtype. What goes for one low dtype stays for the other."""
    kept: list[Entry] = []
    for name, file, line in entries:
        each_dtype = for_each_low_dtype(name)
        stays = [each for each in each_dtype if not leaves(*split(each))]
        kept += [(each, file, line) for each in ([name] if stays == each_dtype else stays)]
    return kept


def split(entry: str) -> tuple[str, str]:
    """Op and low dtype, "" for both: of ``mm@float16``, ``mm`` and ``float16``."""
    op, _, low = entry.partition("@")
    return op, low


class Claims:
    """The ops that an author names: what another's lists say of them leaves these lists, by whatever name they say it (D6, D39).

    ``rsub`` leaves where the author names ``sub``, which decides it then; ``sub`` stays where he names ``rsub``. The ops that a named one
    is made of stay, unless ``with_insides``.
    """

    def __init__(self, names: Iterable[str], *, with_insides: bool = False) -> None:
        self._own = {split(each) for name in names for each in for_each_low_dtype(name)}
        self._insides: set[tuple[str, str]] = set()
        if with_insides:
            for op, low in self._own:
                inside = {*_flat(core.candidates(op))} - {*_flat(core.dispatched_candidates(op))}
                self._insides |= {(each, low) for each in inside}

    def __call__(self, op: str, low: str) -> bool:
        whole = op.partition(".")[0]
        return (whole, low) in self._insides or any((each, low) in self._own for each in (op, *_asked_for(whole)))

    def of_other_names(self, op: str, low: str) -> bool:
        return (op, low) not in self._own and self(op, low)


@functools.lru_cache(maxsize=4096)  # a search edits lists a hundred times
def _asked_for(op: str) -> frozenset[str]:
    """The names under which the lists are asked for an op, by either front end."""
    return frozenset([op, *_flat(core.candidates(op)), *_flat(core.dispatched_candidates(op))])


def _flat(levels: list[list[str]]) -> list[str]:
    return list(itertools.chain.from_iterable(levels))


def merged(
    default: list[Entry], file: ListFile | None, others: Iterable[ListFile], *, asked_last: bool = False
) -> list[Entry]:
    """A list after the files: ``file`` replaces or edits it, and what the others claim leaves its default (D6, D21).

    In a list that is ``asked_last`` a name may stay that the others have, too: it decides nothing (F50).
    """
    if file and not file.edits:
        return file.named
    claims = Claims(whole_op(name) for other in others for name, _, _ in other.named)
    leaving = claims.of_other_names if asked_last else claims
    removed = {each for name, _, _ in (file.removed if file else ()) for each in map(split, for_each_low_dtype(name))}
    kept = less(default, lambda op, low: (op, low) in removed or leaving(op, low))
    return [*file.named, *kept] if file else kept


def merged_lists(defaults: Mapping[str, list[Entry]], files: Mapping[str, ListFile]) -> dict[str, list[Entry]]:
    """The lists of a policy after files, by the lists that both are."""
    return {
        title: merged(
            default,
            files.get(title),
            [file for other, file in files.items() if other != title],
            asked_last=title == "promote",
        )
        for title, default in defaults.items()
    }


def limited_of(files: Mapping[str, ListFile]) -> list[Limited]:
    """Of files by the lists that they are."""
    return [
        (title, name, modules, path, line)
        for title, file in files.items()
        for (name, path, line), modules in file.limited
    ]


def merged_limited(default: Iterable[Limited], files: Mapping[str, ListFile]) -> list[Limited]:
    """Names that are limited to modules after the files, by the same rules: only names for the same modules meet."""
    kept = list(default)
    for title, file in files.items():
        if not file.edits:
            kept = [each for each in kept if each[0] != title]
        for (entry, _, _), modules in file.unlimited:
            kept = less_limited(kept, entry, modules, title)
    named = limited_of(files)
    for _, entry, modules, _, _ in named:
        kept = less_limited(kept, entry, modules)
    return [*named, *kept]


def less_limited(names: Iterable[Limited], entry: str, modules: str, title: str = "") -> list[Limited]:
    """Names that are limited to modules without what another one claims: that op for these modules, in all lists or in one."""
    claims, kept = Claims([entry]), []
    for each, name, where, file, line in names:
        concerned = where == modules and title in ("", each)
        left = less([(name, file, line)], claims) if concerned else [(name, file, line)]
        kept += [(each, stays, where, file, line) for stays, _, _ in left]
    return kept


def comment_of(path: str | None, line: int | None, name: str | None) -> str:
    """What stands behind a name in its line, where the file is still as it was read."""
    if not path or not line or not name:
        return ""
    linecache.checkcache(path)
    listed, _, comment = linecache.getline(path, line).partition("#")
    return comment.strip() if listed.partition(" in ")[0].strip().lstrip("+-") == name else ""


_COLON = re.compile("(?<!:):(?!:)")  # which is none of aten::mm
LISTS = ("lower", "fp32", "promote")
ALL_LISTS = (*LISTS, "error")
# What people write for the name of a list.
_LIST_OF = dict.fromkeys(("bf16", "bfloat16", "fp16", "float16", "half", "low"), "lower") | {
    "float32": "fp32",
    "f32": "fp32",
    "float": "fp32",
}
_ACCEPTED = (
    f"Accepted are '+op:list' and '-op', with a list of {', '.join(ALL_LISTS)}, "
    "and op@float16 or op@bfloat16 for op, with ' in modules' after it for some modules alone"
)
# A module as reports and the log name it: the class of the model, and the path.
_WITH_MODEL = re.compile(r"(?P<before>.* in )?(?P<model>\w+): (?P<path>.+)")


class Edit(NamedTuple):
    """``list`` is "" where the op is removed from all lists, ``modules`` where the edit is for the whole model."""

    op: str
    modules: str
    list: str


def read_edit(text: str) -> Edit:
    """Raises TypeError or ValueError with the part that is wrong."""
    if not isinstance(text, str):
        raise TypeError(f"an edit of a policy must be a string such as '+layer_norm:lower', not {text!r}")
    entry, colon, title = text[1:].partition(":")
    read = read_entry(entry)
    is_edit = title in ALL_LISTS if text[:1] == "+" else text[:1] == "-" and not colon
    if read is None or not is_edit:
        problem = _problem(text)
        end = "" if problem.endswith("?") else "."
        raise ValueError(f"{text!r} is not an edit of a policy: {problem}{end} {_ACCEPTED}")
    if read[1] and title == "error":
        raise ValueError(f"{text!r}: the error list is for the whole model; names for modules go to {', '.join(LISTS)}")
    return Edit(*read, title)


def read_entry(text: str) -> tuple[str, str] | None:
    """The name and the modules of an entry, such as "mul in *.rotary_emb"; None if it is none."""
    return core.read_entry(encodable(text))


def edits_in(text: str) -> Iterator[tuple[int, str]]:
    """The edits of a file, such as ``habana-mp report --write-edits`` makes, with their lines. What stands behind a # is a comment."""
    for number, line in enumerate(text.splitlines(), start=1):
        if edit := line.partition("#")[0].strip():
            yield number, edit


def are_edits(text: str) -> bool:
    """Whether a file has edits of a policy, ``+op:list`` and ``-op``, and is no list: by all of its lines, since any of them may be wrong."""
    lines = [edit for _, edit in edits_in(text)]
    return any(map(_COLON.search, lines)) and all(line[0] in "+-" or _COLON.search(line) for line in lines)


def without_model(text: str) -> str:
    """A path, or an edit with one, without the class of the model in front of the path; "" for a text that has none."""
    match = _WITH_MODEL.fullmatch(text)
    return (match["before"] or "") + match["path"] if match else ""


def _problem(text: str) -> str:
    sign, (entry, _, title) = text[:1], text[1:].partition(":")
    if sign not in {"+", "-"}:
        return "it begins with neither + nor -"
    if " in " in text and (shorter := without_model(text)):
        return f"a path has no name of a model before it. Write {shorter!r}"
    if read_entry(entry) is None:
        return _problem_of_entry(entry)
    if sign == "-":
        return f"- removes the op from all lists and takes no list. Write {sign + entry!r}"
    if not title:
        return f"it names no list. Write {f'+{entry}:fp32'!r} or {f'+{entry}:lower'!r}"
    return f"{title!r} is not a list{_near_list(title)}"


def _problem_of_entry(entry: str) -> str:
    name, _, modules = entry.partition(" in ")
    op, at, low = name.partition("@")
    if modules and read_entry(name) is not None:
        return f"{modules!r} is not a path or a pattern of modules"
    if at and low not in core.LOW_DTYPES and read_entry(op) is not None:
        return f"{low!r} is not a low dtype"
    return f"{name!r} is not the name of an op"


def _near_list(title: str) -> str:
    plain = title.strip().lower()
    plain = _LIST_OF.get(plain, plain)
    return did_you_mean([plain]) if plain in ALL_LISTS else near(title, ALL_LISTS, most=1)
