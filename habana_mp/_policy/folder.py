"""Policies on disk: a folder with policy.toml, lower.txt, fp32.txt and promote.txt, as the presets under lists/ are; and, if wanted,
weight_int8.txt and int8.txt.

What differs between versions of torch is in files of edits beside the lists: fp32.since-2.15.txt is for torch 2.15 and later,
fp32.before-2.13.txt for those that are older than 2.13.

Knows the form of the folder; what its values mean is checked by src/policy/policy.cpp.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

import habana_mp._core as core
from habana_mp._policy.edit import ALL_LISTS, LISTS, listed
from habana_mp._policy.list_file import ListFile, after_files, read_list
from habana_mp._policy.names import check_known
from habana_mp._policy.read_file import FileError, read_text
from habana_mp._show.did_you_mean import near
from habana_mp._show.units import printable
from habana_mp._show.writing import written

SHIPPED = Path(__file__).parent.parent / "lists"
DESCRIPTION = "policy.toml"
# The rules for DESCRIPTION once more, for editors. tests/policy/policies/test_policy_schema.py holds the two together.
SCHEMA = Path(__file__).parent / "policy.schema.json"
# One that is misspelled is an error: passed over, it would be a rule that is missing.
_EDITS = re.compile(rf"({'|'.join(LISTS)})\.(since|before)-(\d+)\.(\d+)\.txt")
_OTHERS = frozenset(core.POLICY_SETTINGS) - {"name", "low_dtype", "low_dtypes"}  # each checked by itself, by the core
_KEYS = frozenset([*core.POLICY_SETTINGS, "source", "device", "error"])


def presets() -> tuple[str, ...]:
    """Return the names of the policies in this package, for ``Policy.load`` and ``convert(policy=...)``.

    Example:
        >>> "balanced" in hmp.presets()
        True
    """
    return tuple(sorted(path.name for path in SHIPPED.iterdir() if path.is_dir()))


def hint_of_file(path: str) -> str:
    """Why a file is no policy."""
    folder, name = os.path.split(path)
    if name == DESCRIPTION:
        return f" Pass the folder of the file, {folder or '.'!r}."
    return f" It is a file. For a list file, use Policy.from_files, such as Policy.from_files(lower={path!r})."


def hint_of_name(text: str) -> str:
    """Why a name is no policy."""
    if os.sep in text:
        return f" There is no folder {text!r:.200}."
    return near(text, presets(), most=1).removeprefix(".")


def read_folder(folder: Path, *, shipped: bool, strict: bool = False) -> core.Policy:
    described = read_description(folder / DESCRIPTION)
    with _missing_named():
        files = {title: read_list(folder / f"{title}.txt", title) for title in LISTS if _has(folder, title)}
    for file in files.values():
        if file.edits:
            raise ValueError(
                f"{file.path}: names that begin with + or - edit another list, and a list of a policy cannot have them"
            )
    entries = [entry for file in files.values() for entry in file.named]
    for edits in edits_for(torch.__version__, folder):
        entries = after_files(entries, edits, same_author=True)
    entries += [listed(op, "error", str(folder / DESCRIPTION)) for op in described.get("error", [])]
    settings = {key: described[key] for key in core.POLICY_SETTINGS if key in described}
    try:
        made = core.Policy(**({"name": printable(folder.name)} | settings), entries=entries)
    except ValueError as mistake:
        message = str(mistake)
        raise ValueError(message if str(folder) in message else f"{folder / DESCRIPTION}: {message}") from None
    if not shipped:
        for title in ALL_LISTS:
            where = files[title].path if title in files else str(folder / DESCRIPTION)
            check_known([entry for entry in entries if entry.list == title], where, strict=strict)
    return made


def _has(folder: Path, title: str) -> bool:
    """Whether the folder must have the file of a list, or has it."""
    return title not in core.OPTIONAL_LISTS or (folder / f"{title}.txt").exists()


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
        file = read_list(path, title)
        if not file.edits:
            if not file.named:
                continue  # an empty list would take the place of the other
            raise ValueError(f"{path}: its names must begin with + or -, because they edit {title}.txt")
        is_newer = (int(major), int(minor)) >= of_file
        if is_newer == (side == "since"):
            # From the lists outwards: 2.14 before 2.15, and before 2.13 before before 2.12.
            order = of_file if side == "since" else (-of_file[0], -of_file[1])
            found.append((side, order, title, file))
    return [{title: file} for _, _, title, file in sorted(found, key=lambda each: each[:3])]


def write_folder(folder: Path, policy: core.Policy, source: str) -> None:
    """The folder that ``read_folder`` reads back as this policy. The folder is there. Raises OSError."""
    settings = {key: getattr(policy, key) for key in core.POLICY_SETTINGS}
    if policy.low_dtype not in policy.low_dtypes:
        settings["low_dtypes"] = [policy.low_dtype, *policy.low_dtypes]
    error = [str(entry) for entry in policy.entries if entry.list == "error"]
    described = {"name": policy.name, "source": source, **settings, "error": error}
    # JSON's strings, lists of strings and booleans are TOML's.
    texts = {DESCRIPTION: "".join(f"{key} = {json.dumps(value)}\n" for key, value in described.items())}
    for title in LISTS:
        entries = [entry for entry in policy.entries if entry.list == title]
        if title in core.OPTIONAL_LISTS and not entries:
            continue
        lines = [f"{entry}  # {entry.comment}" if entry.comment else str(entry) for entry in entries]
        texts[f"{title}.txt"] = "\n".join([f"# Policy {policy.name}, {title}: {source}", *lines]) + "\n"
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
        raise FileError(path, f"{error}{_without_quotes(text)}") from None
    except RecursionError:
        raise FileError(path, "its values are nested too deeply") from None
    if mistakes := list(_mistakes_in(described)):
        raise FileError(path, *mistakes)
    return {"low_dtypes": [*core.LOW_DTYPES], "cache": True} | described


@contextlib.contextmanager
def _missing_named() -> Iterator[None]:
    """A file that is not there is an error which says what a folder needs."""
    try:
        yield
    except FileNotFoundError as error:
        needed = ", ".join([DESCRIPTION, *(f"{title}.txt" for title in LISTS if title not in core.OPTIONAL_LISTS)])
        raise FileNotFoundError(
            error.errno, f"{error.strerror}; the folder of a policy has {needed}", str(error.filename)
        ) from None


def _mistakes_in(described: Mapping[str, Any]) -> Iterator[str]:
    for key in sorted(described.keys() - _KEYS):
        yield f"{key!r} is not a key of a policy. Accepted are {', '.join(sorted(_KEYS))}"
    if not isinstance(described.get("low_dtype"), str):
        yield "low_dtype must be given, as a string"
    if "rest" not in described:
        yield "rest must be given, as a string"
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
    for key in sorted(_OTHERS & described.keys()):
        yield from _mistakes_of(key, described[key])


def _mistakes_of(key: str, value: object) -> Iterator[str]:
    settings: dict[str, Any] = {"name": "checked", "low_dtype": core.LOW_DTYPES[0], "rest": "inputs", key: value}
    try:
        core.Policy(**settings)
    except ValueError as error:
        yield str(error)
