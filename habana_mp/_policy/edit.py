"""One edit of a policy, "+layer_norm:lower" or "-mm": its parts, and what is wrong with a text that is none."""

from __future__ import annotations

import re
from typing import NamedTuple

import habana_mp._core as core
from habana_mp._show.did_you_mean import did_you_mean, near

LISTS_FOR_MODULES = ("lower", "fp32", "promote")
_LISTS = (*LISTS_FOR_MODULES, "error")
# What people write for the name of a list.
_LIST_OF = dict.fromkeys(("bf16", "bfloat16", "fp16", "float16", "half", "low"), "lower") | {
    "float32": "fp32",
    "f32": "fp32",
    "float": "fp32",
}
_ACCEPTED = (
    f"Accepted are '+op:list' and '-op', with a list of {', '.join(_LISTS)}, "
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
    read = core.read_entry(entry)
    is_edit = title in _LISTS if text[:1] == "+" else text[:1] == "-" and not colon
    if read is None or not is_edit:
        problem = _problem(text)
        end = "" if problem.endswith("?") else "."
        raise ValueError(f"{text!r} is not an edit of a policy: {problem}{end} {_ACCEPTED}")
    if read[1] and title == "error":
        raise ValueError(
            f"{text!r}: the error list is for the whole model; names for modules go to {', '.join(LISTS_FOR_MODULES)}"
        )
    return Edit(*read, title)


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
    if core.read_entry(entry) is None:
        return _problem_of_entry(entry)
    if sign == "-":
        return f"- removes the op from all lists and takes no list. Write {sign + entry!r}"
    if not title:
        return f"it names no list. Write {f'+{entry}:fp32'!r} or {f'+{entry}:lower'!r}"
    return f"{title!r} is not a list{_near_list(title)}"


def _problem_of_entry(entry: str) -> str:
    name, _, modules = entry.partition(" in ")
    op, at, low = name.partition("@")
    if modules and core.read_entry(name) is not None:
        return f"{modules!r} is not a path or a pattern of modules"
    if at and low not in core.LOW_DTYPES and core.read_entry(op) is not None:
        return f"{low!r} is not a low dtype"
    return f"{name!r} is not the name of an op"


def _near_list(title: str) -> str:
    plain = title.strip().lower()
    plain = _LIST_OF.get(plain, plain)
    return did_you_mean([plain]) if plain in _LISTS else near(title, _LISTS, most=1)
