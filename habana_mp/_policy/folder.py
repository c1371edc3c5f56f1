"""Policies on disk: a folder with policy.toml, lower.txt, fp32.txt and promote.txt, as the presets under lists/ are.

What differs between versions of torch is in files of edits beside the lists: fp32.since-2.15.txt is for torch 2.15 and later,
fp32.before-2.13.txt for those that are older than 2.13.

Knows the form of the folder; what its values mean is checked by src/policy/policy.cpp.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

import habana_mp._core as core
from habana_mp._policy.list_file import LISTS, ListFile, comment_of, limited_of, merged_limited, merged_lists, read_list
from habana_mp._policy.names import check_known
from habana_mp._policy.read_file import read_text
from habana_mp._show.units import printable
from habana_mp._show.writing import written

SHIPPED = Path(__file__).parent.parent / "lists"
DESCRIPTION = "policy.toml"
# The rules for DESCRIPTION once more, for editors. tests/policy/policies/test_policy_schema.py holds the two together.
SCHEMA = Path(__file__).parent / "policy.schema.json"
# One that is misspelled is an error: passed over, it would be a rule that is missing.
_EDITS = re.compile(rf"({'|'.join(LISTS)})\.(since|before)-(\d+)\.(\d+)\.txt")
_KEYS = frozenset(["name", "source", "low_dtype", "low_dtypes", "device", "rest", "error", "cache"])


def read_folder(folder: Path, *, shipped: bool) -> core.Policy:
    described = read_description(folder / DESCRIPTION)
    with _missing_named():
        files = {title: read_list(folder / f"{title}.txt") for title in LISTS}
    for file in files.values():
        if file.edits:
            raise ValueError(
                f"{file.path}: names that begin with + or - edit another list, and a list of a policy cannot have them"
            )
    lists, limited = {title: file.named for title, file in files.items()}, limited_of(files)
    for edits in edits_for(torch.__version__, folder):
        lists, limited = merged_lists(lists, edits), merged_limited(limited, edits)
    error = [(op, str(folder / DESCRIPTION), 0) for op in described.get("error", [])]
    try:
        made = core.Policy(
            described.get("name", printable(folder.name)),
            described["low_dtype"],
            described["rest"],
            lists["lower"],
            lists["fp32"],
            lists["promote"],
            error,
            described["low_dtypes"],
            described["cache"],
            limited,
        )
    except ValueError as mistake:
        message = str(mistake)
        raise ValueError(message if str(folder) in message else f"{folder / DESCRIPTION}: {message}") from None
    if not shipped:
        for title, entries in lists.items():
            of_modules = [(name, file, line) for other, name, _, file, line in limited if other == title]
            check_known([*entries, *of_modules], files[title].path, strict=False)
        check_known(error, str(folder / DESCRIPTION), strict=False)
    return made


def edits_for(version: str, folder: Path) -> list[dict[str, ListFile]]:
    """The edits to the lists of a folder for a version of torch, in the order in which they are made: by the list that each is for.

    Raises OSError, or ValueError for what is no edits.
    """
    found = []
    major, minor = version.split(".")[:2]
    for path in folder.glob("*.*.txt"):
        if path.name.partition(".")[0] not in LISTS:
            continue
        named = _EDITS.fullmatch(path.name)
        if named is None:
            raise ValueError(
                f"{path}: the name of a file with edits for a version of torch must be LIST.since-2.N.txt or LIST.before-2.N.txt"
            )
        title, side, *release = named.groups()
        of_file = (int(release[0]), int(release[1]))
        file = read_list(path)
        if not file.edits:
            if not file.named and not file.limited:
                continue  # an empty list would take the place of the other
            raise ValueError(f"{path}: its names must begin with + or -, because they edit {title}.txt")
        is_newer = (int(major), int(minor)) >= of_file
        if is_newer == (side == "since"):
            # From the lists outwards: 2.14 before 2.15, and before 2.13 before before 2.12.
            order = of_file if side == "since" else (-of_file[0], -of_file[1])
            found.append((side, order, title, file))
    return [{title: file} for _, _, title, file in sorted(found, key=lambda each: each[:3])]


def write_folder(folder: Path, policy: core.Policy, source: str, comments: Mapping[str, str] | None = None) -> None:
    """The folder that ``read_folder`` reads back as this policy. The folder is there. Raises OSError.

    Behind a name is its comment. Without ``comments`` it is the one in the file which the name was read from; that may be a file of this folder.
    """
    described = {
        "name": policy.name,
        "source": source,
        "low_dtype": policy.low,
        "low_dtypes": policy.low_dtypes if policy.low in policy.low_dtypes else [policy.low, *policy.low_dtypes],
        "rest": policy.rest,
        "error": [op for op, _, _ in policy.error],
        "cache": policy.cached,
    }
    # JSON's strings, lists of strings and booleans are TOML's.
    texts = {DESCRIPTION: "".join(f"{key} = {json.dumps(value)}\n" for key, value in described.items())}
    for title in LISTS:
        entries = [(op, op, file, line) for op, file, line in getattr(policy, title)]
        entries += [
            (f"{op} in {where}", op, file, line) for each, op, where, file, line in policy.limited if each == title
        ]
        lines = [f"# Policy {policy.name}, {title}: {source}"]
        for name, op, file, line in entries:
            comment = comment_of(file, line, op) if comments is None else comments.get(name)
            lines.append(f"{name}  # {comment}" if comment else name)
        texts[f"{title}.txt"] = "\n".join(lines) + "\n"
    for name, text in texts.items():
        written(text, folder / name)


def source_of(preset: str) -> str:
    """Which document the lists of a preset are from."""
    return str(read_description(SHIPPED / preset / DESCRIPTION)["source"])


def _without_quotes(text: str) -> str:
    """A hint for TOML that is none because of a word without quotes; true and false need none."""
    match = re.search(rf"^\s*({'|'.join(_KEYS)})\s*=\s*(?!true\b|false\b)([A-Za-z][\w.-]*)", text, re.MULTILINE)
    return f'. Strings need quotes: {match[1]} = "{match[2]}"' if match else ""


def read_description(path: Path) -> dict[str, Any]:
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib

    with _missing_named():
        text = read_text(path, core.MAX_LIST_BYTES)
    try:
        described: dict[str, Any] = tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError is one
        raise ValueError(f"{path}: {error}{_without_quotes(text)}") from None
    except RecursionError:
        raise ValueError(f"{path}: its values are nested too deeply") from None
    if mistakes := list(_mistakes_in(described)):
        raise ValueError("\n".join(f"{path}: {mistake}" for mistake in mistakes))
    return {"low_dtypes": [*core.LOW_DTYPES], "cache": True} | described


@contextlib.contextmanager
def _missing_named() -> Iterator[None]:
    """A file that is not there is an error which says what a folder needs."""
    try:
        yield
    except FileNotFoundError as error:
        needed = ", ".join([DESCRIPTION, *(f"{title}.txt" for title in LISTS)])
        raise FileNotFoundError(
            error.errno, f"{error.strerror}; the folder of a policy has {needed}", str(error.filename)
        ) from None


def _mistakes_in(described: Mapping[str, Any]) -> Iterator[str]:
    for key in sorted(described.keys() - _KEYS):
        yield f"{key!r} is not a key of a policy. Accepted are {', '.join(sorted(_KEYS))}"
    for key in ("low_dtype", "rest"):
        if not isinstance(described.get(key), str):
            yield f"{key} must be given, as a string"
    for key in ("name", "source", "device"):
        if not isinstance(described.get(key, ""), str):
            yield f"{key} must be a string"
    error_ops = described.get("error", [])
    if not isinstance(error_ops, list) or not all(isinstance(op, str) for op in error_ops):
        yield "error must be a list of op names"
    low, low_dtypes = described.get("low_dtype"), described.get("low_dtypes", [*core.LOW_DTYPES])
    if not isinstance(low_dtypes, list) or not low_dtypes or not all(each in core.LOW_DTYPES for each in low_dtypes):
        yield f"low_dtypes must be a list of {' and '.join(core.LOW_DTYPES)}, or of one of them"
    elif isinstance(low, str) and low not in low_dtypes:
        yield f"low_dtype must be {' or '.join(low_dtypes)}, not {low!r}"
    if isinstance(described.get("rest"), str):
        try:
            core.Policy("checked", core.LOW_DTYPES[0], described["rest"], [], [], [], [])
        except ValueError as error:
            yield str(error)
    if not isinstance(described.get("cache", True), bool):
        yield "cache must be true or false"
