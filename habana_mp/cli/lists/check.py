"""``habana-mp lists check``: everything that is wrong in list files and folders of policies, with file and line."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import click

import habana_mp._core as core
from habana_mp._policy.folder import DESCRIPTION, read_description
from habana_mp._policy.list_file import LISTS, Entry, ListFile, are_edits, edits_in, parse_list, read_edit
from habana_mp._policy.names import check_known
from habana_mp._policy.read_file import read_file, read_text
from habana_mp.cli.output import json_option, write_json
from habana_mp.hmp import Policy

# Per file: a file that is no list at all needs no more lines than these.
_MOST_PROBLEMS = 50


@dataclasses.dataclass(frozen=True)
class Finding:
    """One mistake. ``line`` is 0 where it is none of a line."""

    file: str
    line: int
    message: str

    @classmethod
    def of(cls, message: str, file: str) -> Finding:
        """Of the text of an error: "file:line: message", or a message alone."""
        place = re.match(rf"{re.escape(file)}(?::(\d+))?: ", message)
        return cls(file, int(place[1] or 0), message[place.end() :]) if place else cls(file, 0, message)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}" if self.line else f"{self.file}: {self.message}"


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(exists=True))
@json_option
def check(files: tuple[str, ...], json_file: str | None) -> None:
    """Print the mistakes in list files and policies.

    FILE is a list, a list of edits (+op, -op), a file of edits for --edit (+op:list, -op), or the folder or policy.toml of a policy. Each
    mistake is one line: names that torch does not have, with the nearest names; lines that are not a name; names that are listed twice; in
    folders, ops that are in both the lower and the fp32 list. Exit code 0: no mistake; 1: there are some.

    \b
      habana-mp lists check lower.txt fp32.txt my_policy/
    """
    found = [finding for file in files for finding in _mistakes(Path(file))]
    if json_file != "-":
        click.echo("\n".join(map(str, found)) or "no mistakes found")
    write_json([dataclasses.asdict(finding) for finding in found], json_file)
    if found:
        raise SystemExit(1)


def _mistakes(path: Path) -> list[Finding]:
    if path.is_dir():
        return _of_folder(str(path))
    return _of_folder(str(path.parent)) if path.name == DESCRIPTION else _read(str(path))[1]


def _of_folder(folder: str) -> list[Finding]:
    paths = {title: Path(folder, f"{title}.txt") for title in LISTS}
    lists: dict[str, ListFile] = {}
    found: list[Finding] = []
    for title, path in paths.items():
        if path.is_file():
            list_file, mistakes = _read(str(path), of_folder=True)
            lists[title] = list_file
            found += mistakes
            if list_file.edits:
                found.append(
                    Finding(
                        str(path),
                        0,
                        "names that begin with + or - edit another list, and a list of a policy cannot have them",
                    )
                )
    found += _claimed_twice(lists)
    description = str(Path(folder) / DESCRIPTION)
    try:
        read_description(Path(description))
        if not found:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                Policy.load(Path(folder))
            found += [Finding.of(line, description) for each in caught for line in str(each.message).splitlines()[1:]]
    except OSError as error:
        found.append(Finding(str(error.filename), 0, str(error.strerror)))
    except ValueError as error:
        found += [Finding.of(line, description) for line in str(error).splitlines()]
    return found


def _read(path: str, *, of_folder: bool = False) -> tuple[ListFile, list[Finding]]:
    """What can be read of a list, and its mistakes. The reader stops at the first: go on without the line that it is in."""
    found: list[Finding] = []
    try:
        lines = read_file(path, core.MAX_LIST_BYTES).splitlines(keepends=True)
    except OSError as error:
        return ListFile(path, False, [], []), [Finding(path, 0, str(error.strerror))]
    except ValueError as error:
        return ListFile(path, False, [], []), [Finding.of(str(error), path)]
    if not of_folder and are_edits(b"".join(lines).decode("utf-8-sig", "replace")):
        return ListFile(path, True, [], []), _of_edits(path)
    while True:
        try:
            read = parse_list(b"".join(lines), path)
            break
        except ValueError as error:
            finding = Finding.of(str(error), path)
            if len(found) == _MOST_PROBLEMS:
                return ListFile(path, False, [], []), _first([*found, finding])
            found.append(finding)
            lines[finding.line - 1] = b"\n"
    limited = [*read.limited, *read.unlimited]
    named = [
        *read.named,
        *read.removed,
        *((f"{name} in {modules}", file, line) for (name, file, line), modules in limited),
    ]
    try:
        check_known([*read.named, *read.removed, *(entry for entry, _ in limited)], path, strict=True)
    except ValueError as error:
        found += [Finding.of(line, path) for line in str(error).splitlines()]
    found += _twice(named)
    return read, _first(sorted(found, key=lambda finding: finding.line))


def _of_edits(path: str) -> list[Finding]:
    """The mistakes in a file of edits for --edit."""
    try:
        text = read_text(path, core.MAX_LIST_BYTES)
    except ValueError as error:
        return [Finding.of(str(error), path)]
    found: list[Finding] = []
    named: list[Entry] = []
    whole: list[Entry] = []
    for line, text_of_edit in edits_in(text):
        try:
            edit = read_edit(text_of_edit)
        except ValueError as error:
            found.append(Finding(path, line, str(error)))
            continue
        named.append((edit.op, path, line))
        whole.append((f"{edit.op} in {edit.modules}" if edit.modules else edit.op, path, line))
    try:
        check_known(named, path, strict=True)
    except ValueError as error:
        found += [Finding.of(line, path) for line in str(error).splitlines()]
    return _first(sorted([*found, *_twice(whole)], key=lambda finding: finding.line))


def _twice(named: list[Entry]) -> Iterator[Finding]:
    first: dict[str, int] = {}
    for name, path, line in named:
        if name in first:
            yield Finding(path, line, f"{name!r} is in line {first[name]} already")
        first.setdefault(name, line)


def _first(found: list[Finding]) -> list[Finding]:
    if len(found) <= _MOST_PROBLEMS:
        return found
    return [
        *found[:_MOST_PROBLEMS],
        Finding(found[0].file, 0, f"and more: {_MOST_PROBLEMS} mistakes of a file are shown"),
    ]


def _claimed_twice(lists: dict[str, ListFile]) -> list[Finding]:
    """Ops that the lower and the fp32 list both have. A policy raises for the first: go on without it."""
    lower, fp32 = ([*lists[title].named] if title in lists else [] for title in ("lower", "fp32"))
    found: list[Finding] = []
    while message := _refusal(lower, fp32):
        name = message.split("'")[1]
        found += [Finding(file, line, message) for op, file, line in fp32 if op == name]
        if not any(op == name for op, _, _ in fp32):
            break
        fp32 = [entry for entry in fp32 if entry[0] != name]
    return sorted(found, key=lambda finding: finding.line)


def _refusal(lower: list[Entry], fp32: list[Entry]) -> str:
    try:
        core.Policy("checked", "bfloat16", "inputs", lower, fp32, [], [])
    except ValueError as error:
        return str(error)
    return ""
