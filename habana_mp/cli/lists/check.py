"""``habana-mp lists check``: everything that is wrong in list files and folders of policies, with file and line."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

import habana_mp._core as core
from habana_mp._core import Entry
from habana_mp._policy.edit import LISTS, are_edits, edits_in, read_edit
from habana_mp._policy.folder import DESCRIPTION, read_description, read_folder
from habana_mp._policy.names import unknown_in
from habana_mp._policy.read_file import FileError, read_file
from habana_mp.cli.output import json_option, write_json

# Per file: a file that is no list at all needs no more lines than these.
_MOST_PROBLEMS = 50


@dataclasses.dataclass(frozen=True)
class Finding:
    """One mistake. ``line`` is 0 where it is none of a line."""

    file: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}" if self.line else f"{self.file}: {self.message}"


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(exists=True))
@json_option
def check(files: tuple[str, ...], json_file: str | None) -> None:
    """Print the mistakes in list files and policies.

    FILE is a list, a list of edits (+op, -op), a file of edits for --edit (+op:list, -op), or the folder or policy.toml of a policy. Each
    mistake is one line: names that torch does not have, with the nearest names; lines that are not a name; names that are listed twice; in
    folders, ops that two lists cannot both have, and ops that cannot be in their list. Exit code 0: no mistake; 1: there are some.

    \b
      habana-mp lists check lower.txt fp32.txt my_policy/
    """
    found: list[Finding] = []
    for path in map(Path, files):
        if path.is_dir() or path.name == DESCRIPTION:
            found += _of_folder(str(path if path.is_dir() else path.parent))
        else:
            found += _read(path)[2]
    if json_file != "-":
        click.echo("\n".join(map(str, found)) or "no mistakes found")
    write_json([dataclasses.asdict(finding) for finding in found], json_file)
    if found:
        raise SystemExit(1)


def _of_folder(folder: str) -> list[Finding]:
    named: list[Entry] = []
    found: list[Finding] = []
    for title in LISTS:
        path = Path(folder, f"{title}.txt")
        if path.is_file():
            are_edits_of_list, entries, mistakes = _read(path, title)
            named += entries
            found += mistakes
            refused = ((entry, core.problem_of(entry)) for entry in entries)
            found += [Finding(entry.file, entry.line, why) for entry, why in refused if why]
            if are_edits_of_list:
                why = "names that begin with + or - edit another list, and a list of a policy cannot have them"
                found.append(Finding(str(path), 0, why))
    conflicts = core.conflicts_of(named)
    found += sorted((Finding(entry.file, entry.line, why) for entry, why in conflicts), key=lambda each: each.line)
    description = Path(folder, DESCRIPTION)
    try:
        read_description(description)
        if not found:
            found += _unknown(read_folder(Path(folder), shipped=True).entries)
    except OSError as error:
        found.append(Finding(str(error.filename), 0, str(error.strerror)))
    except FileError as error:
        found += [Finding(error.path, 0, mistake) for mistake in error.mistakes]
    except ValueError as error:
        found += [Finding(str(description), 0, line) for line in str(error).splitlines()]
    return found


def _unknown(entries: Iterable[Entry]) -> Iterator[Finding]:
    return (Finding(entry.file, entry.line, message) for entry, message in unknown_in(entries))


def _read(path: Path, title: str = "") -> tuple[bool, list[Entry], list[Finding]]:
    """Whether a file edits a list, its entries, and its mistakes: those of a file of edits for --edit, if it is none of a folder."""
    name = str(path)
    try:
        data = read_file(path, core.MAX_LIST_BYTES)
        if not title and are_edits(data.decode("utf-8-sig", "replace")):
            return False, [], _of_edits(name, data.decode("utf-8-sig"))
    except OSError as error:
        return False, [], [Finding(name, 0, str(error.strerror))]
    except FileError as error:
        return False, [], [Finding(name, 0, error.mistakes[0])]
    except UnicodeDecodeError as error:
        return False, [], [Finding(name, 0, str(error))]
    edits, named, removed, mistakes = core.parse_op_list(data, name, title, all_mistakes=True)
    found = [Finding(name, line, reason) for line, reason in mistakes]
    if len(found) > _MOST_PROBLEMS:
        return False, [], _first(found)
    return edits, named, _first([*found, *_of_names([*named, *removed])])


def _of_edits(path: str, text: str) -> list[Finding]:
    found: list[Finding] = []
    entries: list[Entry] = []
    for line, text_of_edit in edits_in(text):
        try:
            entry = read_edit(text_of_edit).entry
        except ValueError as error:
            found.append(Finding(path, line, str(error)))
            continue
        entries.append(entry.replaced(list="", file=path, line=line))
    return _first([*found, *_of_names(entries)])


def _of_names(entries: list[Entry]) -> Iterator[Finding]:
    yield from _unknown(entries)
    first: dict[Entry, int] = {}
    for entry in entries:
        if entry in first:
            yield Finding(entry.file, entry.line, f"{str(entry)!r} is in line {first[entry]} already")
        first.setdefault(entry, entry.line)


def _first(found: list[Finding]) -> list[Finding]:
    found = sorted(found, key=lambda finding: finding.line)
    if len(found) <= _MOST_PROBLEMS:
        return found
    more = f"and more: {_MOST_PROBLEMS} mistakes of a file are shown"
    return [*found[:_MOST_PROBLEMS], Finding(found[0].file, 0, more)]
