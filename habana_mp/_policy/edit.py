"""Edits of lists in code and in files of their own: "+layer_norm:lower", "-mm". The one place that reads their text.

The text of an entry is read by src/policy/op_list.cpp, and ``str`` of an ``Entry`` or an ``Edit`` writes it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

import habana_mp._core as core
from habana_mp._core import Entry
from habana_mp._policy.read_file import read_text
from habana_mp._show.did_you_mean import did_you_mean, near
from habana_mp._show.short import brief
from habana_mp._show.units import encodable

ALL_LISTS = core.LISTS
LISTS = ALL_LISTS[:-1]  # those with a file each; the error list is in policy.toml


def read_entry(text: str) -> Entry | None:
    """Of a text such as "mul@float16 in *.rotary_emb"; None if it is no entry."""
    return core.read_entry(encodable(text))


def listed(text: object, title: str, file: str = "") -> Entry:
    """The entry of a list that is given as texts. A policy refuses one that is none."""
    if not isinstance(text, str):
        raise TypeError(f"{title} must be a list of op names such as 'relu', and has {text!r} in it")
    return (read_entry(text) or Entry(op=encodable(text))).replaced(list=title, file=file)


def for_each_low_dtype(entry: Entry) -> tuple[str, ...]:
    """The low dtypes that it is for."""
    return (entry.low_dtype,) if entry.low_dtype else core.LOW_DTYPES


class Edit(NamedTuple):
    """Puts its entry into the list of this, or, with ``removed``, takes it out of all lists."""

    entry: Entry
    removed: bool

    def __str__(self) -> str:
        return f"-{self.entry}" if self.removed else f"+{self.entry}:{self.entry.list}"


_COLON = re.compile("(?<!:):(?!:)")  # which is none of aten::mm
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


def read_edit(edit: object) -> Edit:
    """Of a text, or of an edit that a report has found. Raises TypeError or ValueError with the part that is wrong."""
    if isinstance(edit, Edit):
        return edit
    text = getattr(edit, "text", edit)
    if not isinstance(text, str):
        several = ": several are given one by one, with_edits(*edits)" if isinstance(edit, (tuple, list)) else ""
        raise TypeError(f"an edit of a policy must be a string such as '+layer_norm:lower', not {brief(edit)}{several}")
    written, colon, title = text[1:].partition(":")
    entry = read_entry(written)
    is_edit = title in ALL_LISTS if text[:1] == "+" else text[:1] == "-" and not colon
    if entry is None or not is_edit:
        problem = _problem(text)
        end = "" if problem.endswith("?") else "."
        raise ValueError(f"{text!r} is not an edit of a policy: {problem}{end} {_ACCEPTED}")
    if entry.modules and title == "error":
        raise ValueError(f"{text!r}: the error list is for the whole model; names for modules go to {', '.join(LISTS)}")
    entry = entry.replaced(list=title)
    if problem := core.problem_of(entry):
        raise ValueError(problem)
    return Edit(entry, removed=not title)


def edits_in(text: str) -> Iterator[tuple[int, str]]:
    """The edits of a file, such as ``habana-mp report --write-edits`` makes, with their lines. What stands behind a # is a comment."""
    for number, line in enumerate(text.splitlines(), start=1):
        if edit := line.partition("#")[0].strip():
            yield number, edit


def edits_of(path: str | os.PathLike[str]) -> Iterator[tuple[str, Edit]]:
    """Those of a file, each with its place. Raises OSError, or ValueError with the place and what is wrong."""
    for number, text in edits_in(read_text(path, core.MAX_LIST_BYTES)):
        place = f"{os.fspath(path)}, line {number}"
        try:
            yield place, read_edit(text)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from None


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
    plain = title.strip().lower()
    plain = _LIST_OF.get(plain, plain)
    return f"{title!r} is not a list{did_you_mean([plain]) if plain in ALL_LISTS else near(title, ALL_LISTS, most=1)}"


def _problem_of_entry(entry: str) -> str:
    name, _, modules = entry.partition(" in ")
    op, at, low = name.partition("@")
    if modules and read_entry(name) is not None:
        return f"{modules!r} is not a path or a pattern of modules"
    if at and low not in core.LOW_DTYPES and read_entry(op) is not None:
        return f"{low!r} is not a low dtype"
    return f"{name!r} is not the name of an op"
