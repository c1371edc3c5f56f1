"""Facts travel as values: entries, edits, rules, dtypes and paths of modules are text in their one parser and in what prints them alone.

Rows of reports are values too, and plain dicts only where the core hands them over.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from habana_mp._report.data import Why
from habana_mp._report.numbers import UNMEASURED

ROOT = Path(__file__).parents[2]
# What reads a value out of its text, and the files that may: where the text comes from a user, or is made.
READS = {
    "the low dtype of an entry": (
        re.compile(r"""partition\(["']@["']\)|split\(["']@["']|find\(["']@["']\)"""),
        {"habana_mp/_policy/edit.py", "src/policy/op_list.cpp"},
    ),
    "the modules of an entry": (
        re.compile(
            r"""partition\(["'] in ["']\)|split\(["'] in ["']\)|["'] in ["'] (not )?in\b|find\(["'] in ["']\)"""
        ),
        {"habana_mp/_policy/edit.py"},
    ),
    "the path of a module": (
        re.compile(r"""(?<!rule)\.(r?partition|split|find)\(["']: ["']\)"""),
        {"habana_mp/_show/module_path.py", "src/report/module_path.h"},
    ),
    "a row of a report": (
        re.compile(
            r"""\b(row|cast|chain|report)\[["'](op|module|decision|rule|source|calls|seconds|casts|values|rows)["']\]"""
        ),
        {"src/bind/bind_report.cpp", "habana_mp/_report/counted.py"},
    ),
    "the list of an edit": (
        re.compile(
            r"""(edit|edit\.text|text\[1:\])\.r?partition\(":"\)|endswith\(":(fp32|lower)"\)|removesuffix\(":(fp32|lower)"\)"""
        ),
        {"habana_mp/_policy/edit.py"},
    ),
    "the name of a dtype": (re.compile(r"""removeprefix\(["']torch\.["']\)"""), {"habana_mp/_cast.py"}),
    "a rule or a policy": (
        re.compile(r"str\([\w.]*(rule|policy|entry|edit)\)\.(r?partition|split|removeprefix|startswith)"),
        set(),
    ),
    "an error": (
        re.compile(r"(message|str\(error\)|str\(each\.message\))\.(r?partition|split|removeprefix|replace)\("),
        {"habana_mp/_report/form.py"},  # msgspec says where a value is in its text alone
    ),
}


def sources() -> list[Path]:
    found = [*ROOT.glob("habana_mp/**/*.py"), *ROOT.glob("src/**/*.cpp"), *ROOT.glob("src/**/*.h")]
    return [path for path in found if "_built" not in path.parts]


@pytest.mark.parametrize("what", READS)
def test_it_is_read_in_one_place(what: str) -> None:
    reads, allowed = READS[what]
    found = {path.relative_to(ROOT).as_posix() for path in sources() if reads.search(path.read_text(encoding="utf-8"))}
    assert found - allowed == set()
    assert allowed - found == set()  # a file that reads no more need not be named


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("the low dtype of an entry", 'op, _, low = name.partition("@")'),
        ("the low dtype of an entry", "const std::size_t at = name.find('@');"),
        ("the modules of an entry", 'name, _, modules = entry.partition(" in ")'),
        ("the modules of an entry", 'if " in " not in name:'),
        ("the path of a module", 'path = row["module"].partition(": ")[2]'),
        ("the path of a module", 'const std::size_t colon = module.find(": ");'),
        ("a row of a report", 'casts = sum(cast["count"] for row in report["rows"] for cast in row["casts"])'),
        ("a row of a report", 'if row["op"] in names:'),
        ("the list of an edit", 'kind = edit.text.rpartition(":")[2]'),
        ("the list of an edit", 'edit.text[1:].removesuffix(":fp32")'),
        ("the name of a dtype", 'low = str(policy.low_dtype).removeprefix("torch.")'),
        ("a rule or a policy", 'rule = str(self.rule).partition(": ")[2]'),
        ("an error", 'name = message.split("\'")[1]'),
        ("an error", 'str(error).removeprefix("no file: ")'),
    ],
)
def test_what_is_found(what: str, line: str) -> None:
    """Lines that the sources had."""
    assert READS[what][0].search(line)


def test_reasons_are_those_of_the_core() -> None:
    """Why a call is not measured: the names of the core, their texts, and those that a report may have."""
    (names,) = re.findall(r"kUnmeasuredNames = \{(.*?)\}", (ROOT / "src/report/values.h").read_text(), re.DOTALL)
    core = {*re.findall(r'"(\w+)"', names)} - {"none"}
    assert {*UNMEASURED} == core
    assert {*get_args(Why)} == core - {"sizes"}  # of two runs, in compare alone
