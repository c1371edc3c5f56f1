"""README.md, docs/, the public docstrings and the messages of habana_mp avoid the words that stop a reader whose first language is not
English.

The prose of a page or docstring is all of it but code: blocks, indented lines, code in a line, and the targets of links. A message is a
string in a call of the package that raises, warns, or describes an option of the command line. A new word is a row of WORDS.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from public_names import documented, texts

from habana_mp import cli

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").is_file())
PAGES = {
    path.relative_to(ROOT).as_posix(): path for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
}

# Pages that are not checked yet, and why not.
NOT_YET = {
    "docs/benchmarks-tables.md": "generated: its words are those of the scripts in benchmarks/",
}

GLOSSARY = "glossary.md#home"  # a page that links to it may use the words that only these pages have
WITH_GLOSSARY = ("docs/glossary.md", "docs/architecture.md")


class Word(NamedTuple):
    pattern: str
    why: str
    instead: str
    in_glossary: bool = False


WORDS = (
    Word(r"tells?|told|telling", "only people tell", "prints, shows, returns or warns"),
    Word(r"stands?(?!-in\b)|stood|standing", "a metaphor", "is; for 'stands for': means, matches or is a name of"),
    Word(r"fates?", "a metaphor", "result, or what happens to it"),
    Word(r"mend(?:s|ed|ing)?", "not a verb of the field", "fixes or repairs"),
    Word(r"(?:has|have|had)\s+(?:a|no)\s+say", "an idiom", "decides or has no effect"),
    Word(r"(?:gives?|gave)\s+way", "an idiom", "is replaced by"),
    Word(r"says|said|(?<!you )(?<!to )say", "only people say", "prints, shows, states, sets or means"),
    Word(
        r"homes?(?!\s+(?:folder|directory|page)\b)",
        "a word of the code",
        f"name, or a link to {GLOSSARY}",
        in_glossary=True,
    ),
)

# In this order: a fence may hold ` and an indented line.
CODE = (
    re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL),
    re.compile(r"(?<=\n\n)(?: {4}.*\n)+(?:\n(?: {4}.*\n)+)*"),  # a note (!!!) has no blank line in front of its text
    re.compile(r"`[^`]+`"),
    re.compile(r"(?<=\])\([^)\s]+\)"),
    re.compile(r"<[^>\n]+>"),
)


def prose(page: str) -> str:
    """The page with blanks in the place of code: lines and columns stay where they are."""
    for code in CODE:
        page = code.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), page)
    return page


def found(name: str, page: str, *, knows_the_glossary: bool = False) -> list[str]:
    """A line for each word of a page that is to be avoided, as an editor reads it."""
    knows_the_glossary |= GLOSSARY in page or name in WITH_GLOSSARY
    text = prose(page)
    return [
        f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {' '.join(match[0].split())!r} ({word.why}); write: {word.instead}"
        for word in WORDS
        if not (word.in_glossary and knows_the_glossary)
        for match in re.finditer(rf"\b(?:{word.pattern})\b", text, re.IGNORECASE)
    ]


@pytest.mark.parametrize("page", [page for page in PAGES if page not in NOT_YET])
def test_page_avoids_hard_words(page: str) -> None:
    words = found(page, PAGES[page].read_text(encoding="utf-8"))
    assert not words, "\n".join(words)


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        pytest.param("A warning\ntells it.", [(2, "tells")], id="line"),
        pytest.param("Fate: the log has a\nsay.", [(1, "Fate"), (1, "has a say"), (2, "say")], id="case-and-two-lines"),
        pytest.param("Its homes are in the home folder.", [(1, "homes")], id="home"),
        pytest.param(f"Its [homes]({GLOSSARY}).", [], id="home-with-the-glossary"),
        pytest.param("You say which. To say it, a stand-in understands.", [], id="people-and-other-words"),
        pytest.param("```\nsays\n```\n\n    says\n\n`says` [a](says.md)\nsays", [(8, "says")], id="code"),
        pytest.param('!!! note "Stands"\n    It says.\n', [(1, "Stands"), (2, "says")], id="note"),
    ],
)
def test_what_is_found(page: str, expected: list[tuple[int, str]]) -> None:
    lines = [re.match(r"page.md:(\d+): '([^']+)' \(.+\); write: .+", line) for line in found("page.md", page)]
    assert sorted((int(line[1]), line[2]) for line in lines if line) == sorted(expected)


def docstring_prose(text: str) -> str:
    """A docstring without its examples, the names of arguments, and the indentation that a page would take for code."""
    text = re.sub(r"^ *(?:>>>|\.\.\.).*$", "", text, flags=re.MULTILINE)
    return re.sub(r"^ +(?:\*{0,2}\w+: )?", "", text, flags=re.MULTILINE)  # also without the name of an argument


@pytest.mark.parametrize("name", documented())
def test_public_docstring_avoids_hard_words(name: str) -> None:
    words = [
        line
        for member, text in texts(documented()[name]).items()
        for line in found(f"{name}.{member}".rstrip("."), docstring_prose(text))
    ]
    assert not words, "\n".join(words)


# Calls whose strings a user reads; a class of error or warning is one too.
SPEAKS = re.compile(
    r"\w*(?:Error|Warning|Exception|Exit|BadParameter)|warn|fail|echo|refuse|Option|option|argument|command|group"
)
MODULES = sorted((ROOT / "habana_mp").rglob("*.py"))


def messages(source: str) -> Iterator[tuple[int, str]]:
    """The strings in calls that raise, warn or print, with the line of each; what is put into them is "..."."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and SPEAKS.fullmatch(called(node.func)):
            inside = (
                each for value in (*node.args, *(word.value for word in node.keywords)) for each in ast.walk(value)
            )
            for each in inside:
                if isinstance(each, ast.Constant) and isinstance(each.value, str):
                    yield each.lineno, each.value


def called(function: ast.expr) -> str:
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_messages_avoid_hard_words(module: Path) -> None:
    words = [
        f"line {line}: {word}"
        for line, text in messages(module.read_text(encoding="utf-8"))
        for word in found(module.name, text)
    ]
    assert not words, "\n".join(words)


TEMPLATES = sorted((ROOT / "habana_mp" / "templates").glob("*.html"))


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_pages_of_reports_avoid_hard_words(template: Path) -> None:
    text = re.sub(r"\{%.*?%\}|\{#.*?#\}", "", template.read_text(encoding="utf-8"), flags=re.DOTALL)
    words = found(
        template.name, text, knows_the_glossary=True
    )  # the page shows the homes of an op, as hmp.explain does
    assert not words, "\n".join(words)


def helps(command: click.Command, name: str) -> Iterator[tuple[str, str]]:
    """The help of a command, of its options and of its own commands."""
    yield name, " ".join(filter(None, (command.help, command.short_help, command.epilog)))
    for parameter in command.params:
        yield f"{name} {parameter.opts[0]}", getattr(parameter, "help", None) or ""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for each in command.list_commands(context):
            below = command.get_command(context, each)
            assert below is not None
            yield from helps(below, f"{name} {each}")


@pytest.mark.parametrize(("name", "text"), [pytest.param(*each, id=each[0]) for each in helps(cli.main, "habana-mp")])
def test_help_of_the_command_line_avoids_hard_words(name: str, text: str) -> None:
    words = found(name, text)
    assert not words, "\n".join(words)


def test_what_is_a_message() -> None:
    source = """
raise ValueError(f"{name!r} says no", *more)
warn("it tells")
x = y("says")
@click.option("--x", help="it stands")
def f(): ...
"""
    assert [text for _, text in messages(source) if " " in text] == [" says no", "it tells", "it stands"]
