"""Each (F12) and (D16) that the project cites is stated in docs/decisions.md, once.

A citation is a number in a comment, in a string (docstrings, ids and names of cases), in the text of a page, or at the end of a test's
name. Numbers in code are none.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").is_file())
PAGE = ROOT / "docs" / "decisions.md"
FOLDERS = ("benchmarks", "docs", "examples", "habana_mp", "lists", "src", "tests", "tools", "zoo")
FILES = ("CHANGELOG.md", "CMakeLists.txt", "Makefile", "README.md", "pyproject.toml")

# "F105 to F112" and "F105-F112" cite every number from first to last. A hexadecimal number and a code of ruff's behind noqa are no citations.
CITATION = re.compile(r"(?<![\w#.%])([FD])(\d{1,3})(?:(?:\s+to\s+|\s?[-\u2013]\s?)\1(\d{1,3}))?(?![\w(]|\.\w)")
NOQA = re.compile(r"noqa: [A-Z]+\d+(?:, ?[A-Z]+\d+)*")
CITING_NAME = re.compile(r"\bdef test_\w*?((?:_(?:to_)?[df]\d{1,3})+)\(")
STATEMENT = re.compile(r'^- <a id="([fd]\d+)"></a>\*\*([FD]\d+)\*\* \S', re.MULTILINE)

C_PROSE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
HASH_PROSE = re.compile(r"#[^\n]*")
C_LIKE = {".cpp", ".h", ".inc", ".js"}
HASH_LIKE = {".cmake", ".sh", ".toml", ".txt", ".yml", ""}  # "" is Makefile
READ = {".md", ".py", ".pyi"} | C_LIKE | HASH_LIKE


def python_prose(text: str) -> Iterator[tuple[int, int]]:
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in kinds:
            yield starts[token.start[0] - 1] + token.start[1], starts[token.end[0] - 1] + token.end[1]


def prose(text: str, suffix: str) -> str:
    """The text of a file with blanks in the place of code and of the marks of comments: lines stay where they are."""
    if suffix == ".md":
        return text
    if suffix in (".py", ".pyi"):
        spans = python_prose(text)
    else:
        spans = (match.span() for match in (C_PROSE if suffix in C_LIKE else HASH_PROSE).finditer(text))
    kept = [character if character == "\n" else " " for character in text]
    for first, last in spans:
        kept[first:last] = text[first:last]
    said = NOQA.sub(lambda match: " " * len(match[0]), "".join(kept))
    return re.sub(r"(?m)^ *(?://|#|\*) ?", lambda match: " " * len(match[0]), said)


def citations(text: str, suffix: str) -> list[tuple[str, int]]:
    """The cited numbers, and the line of each."""
    places = [(match, match.start()) for match in CITATION.finditer(prose(text, suffix))]
    if suffix == ".py":
        for name in CITING_NAME.finditer(text):
            said = name[1].replace("_", " ").upper().replace("TO", "to")
            places += [(match, name.start(1)) for match in CITATION.finditer(said)]
    return [
        (f"{match[1]}{number}", text.count("\n", 0, start) + 1)
        for match, start in places
        for number in range(int(match[2]), int(match[3] or match[2]) + 1)
    ]


def stated(page: str) -> list[str]:
    return [match[2] for match in STATEMENT.finditer(page)]


def in_vain(cited: Iterable[tuple[str, str]], page: str) -> list[str]:
    """What is cited and not stated, as lines for a reader. ``cited`` are places and numbers."""
    known = set(stated(page))
    return [f"{place}: {number} is not stated in docs/decisions.md" for place, number in cited if number not in known]


def paths() -> list[Path]:
    found = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.is_file()]
    return [
        path for path in (*found, *(ROOT / name for name in FILES)) if path.suffix in READ and path != Path(__file__)
    ]


def cited_in_project() -> Iterator[tuple[str, str]]:
    for path in paths():
        text = path.read_text(encoding="utf-8")
        for number, line in citations(text, path.suffix):
            yield f"{path.relative_to(ROOT)}:{line}", number


def test_no_number_is_cited_in_vain() -> None:
    cited = list(cited_in_project())
    assert len({number for _, number in cited}) > 150
    assert in_vain(cited, PAGE.read_text(encoding="utf-8")) == []


def read_by_users(source: str) -> Iterator[tuple[int, str]]:
    """The docstrings and messages of a module, each with its line: all strings that have more than a word."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"\s", node.value):
            yield node.lineno, node.value


def test_what_users_read_cites_nothing() -> None:
    """`help()` has no page to look numbers up: they are in comments."""
    modules = [path for path in sorted((ROOT / "habana_mp").rglob("*.py*")) if path.suffix in (".py", ".pyi")]
    found = [
        f"{path.relative_to(ROOT)}:{line + below - 1}: {number}"
        for path in modules
        for line, text in read_by_users(path.read_text(encoding="utf-8"))
        for number, below in citations(text, ".md")
    ]
    assert len(modules) > 100
    assert found == []


def test_what_users_read() -> None:
    source = 'def f():\n    """It is\n    so (D7)."""  # (D8)\n    raise ValueError(f"no {x} (F12)", "F32")\n'
    cited = [number for _, text in read_by_users(source) for number, _ in citations(text, ".md")]
    assert sorted(cited) == ["D7", "F12"]


def test_each_number_is_stated_once_under_its_anchor() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [number for number, times in Counter(stated(page)).items() if times > 1] == []
    assert [match[0] for match in STATEMENT.finditer(page) if match[1].upper() != match[2]] == []
    assert len(re.findall(r"<a id=", page)) == len(stated(page))


def test_the_page_says_what_the_numbers_are_in_order() -> None:
    """So that a reader who turns to the page finds a number by looking: the decisions in order, but for D38, then the facts."""
    numbers = [(number[0], int(number[1:])) for number in stated(PAGE.read_text(encoding="utf-8"))]
    in_order = [number for number in numbers if number != ("D", 38)]
    assert in_order == sorted(in_order)


@pytest.mark.parametrize(
    ("suffix", "text", "expected"),
    [
        pytest.param(".py", '"""Casts (F12, D7)."""', ["F12", "D7"], id="docstring"),
        pytest.param(".py", "x = 1  # D12: in place", ["D12"], id="comment"),
        pytest.param(".py", '"""F3 to F5, D8-D9."""', ["F3", "F4", "F5", "D8", "D9"], id="ranges"),
        pytest.param(".py", "# As F3 to\n# F5 say.", ["F3", "F4", "F5"], id="range-over-two-lines"),
        pytest.param(".py", '"""F119/F120 and F7."""', ["F119", "F120", "F7"], id="slash"),
        pytest.param(".py", 'pytest.param(0, id="kept-D29")', ["D29"], id="id-of-a-case"),
        pytest.param(".py", "def test_cast_f3_d4():\n    ...", ["F3", "D4"], id="name-of-a-test"),
        pytest.param(".py", "def test_is_d10_to_d12():\n    ...", ["D10", "D11", "D12"], id="range-in-a-name"),
        pytest.param(".py", "F16 = torch.float16\nF.relu(D1, F32)", [], id="code"),
        pytest.param(".py", "import x  # noqa: F401, D205 - torch's name (F3)", ["F3"], id="noqa"),
        pytest.param(".py", '"""F.relu, 0xF1, #F12, BF16, F12(x), F1.x, FD12."""', [], id="no-numbers-of-ours"),
        pytest.param(".cpp", "int D1 = F2;  // F105 to\n// F106 (D3).\n", ["F105", "F106", "D3"], id="C++"),
        pytest.param(".cpp", 'TEST_CASE("D25: lines") { F16; }', ["D25"], id="name-of-a-C++-test"),
        pytest.param(".toml", 'ignore = ["D1", "F403"] # D2', ["D2"], id="toml"),
        pytest.param(".md", "As D3 says.", ["D3"], id="page"),
    ],
)
def test_what_is_a_citation(suffix: str, text: str, expected: list[str]) -> None:
    assert [number for number, _ in citations(text, suffix)] == expected


def test_a_citation_in_vain_is_found() -> None:
    page = '- <a id="d1"></a>**D1** It is so.\n- **D2** Without an anchor.\n'
    text = "x = 1\n# As D1 to D3 say.\n"
    cited = [(f"a.py:{line}", number) for number, line in citations(text, ".py")]
    assert in_vain(cited, page) == [
        "a.py:2: D2 is not stated in docs/decisions.md",
        "a.py:2: D3 is not stated in docs/decisions.md",
    ]
