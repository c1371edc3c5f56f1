"""`make release-check`, in a repository of its own: which pages it calls older than what they show, and why."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tools.release_check import NOT_KNOWN, PAGES, Page, check, commit_now, measured

ROOT = Path(__file__).parent.parent.parent
PAGE = Page("pages/page.md", "make page", ("data", "tool.py"), beside=("data/written.txt",))
ROWS = PAGE._replace(section="Rows")


def git(*arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    return subprocess.run(["git", *identity, *arguments], capture_output=True, text=True, check=True).stdout.strip()


def commit(**files: str) -> str:
    """Writes and commits files, by name; "__" is a slash and the last "_" a dot."""
    for name, text in files.items():
        file = Path(".".join(name.replace("__", "/").rsplit("_", 1)))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    git("add", ".")
    git("commit", "--quiet", "--message", "next")
    return git("rev-parse", "--short=9", "HEAD")


@pytest.fixture
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The commit of a repository that has what the page depends on, and no page."""
    monkeypatch.chdir(tmp_path)
    git("init", "--quiet")
    return commit(
        data__a_txt="1",
        tool_py="1",
        other_py="1",
        f_py="def f():\n    return 1\n",
        g_py="class A:\n    a: int = 1\n    b: ClassVar = 1\n",
    )


TABLE = "# Page\n\n## Rows\n\n| date | commit |\n|---|---|\n| 2026-11-26 | {} |\n\n## After\n\nAt commit 0123456.\n"
CASES = {
    "nothing-changed": (PAGE, "At commit {}.", {}, "current pages/page.md: {}"),
    "another-file": (PAGE, "At commit {}.", {"other_py": "2"}, "current pages/page.md: {}"),
    "written-with-it": (PAGE, "At commit {}.", {"data__written_txt": "2"}, "current pages/page.md: {}"),
    "figures-of-a-preset": (
        PAGE._replace(depends=("lists",)),
        "At commit {}.",
        {"lists__balanced__policy_toml": "# 2"},
        "current pages/page.md: {}",
    ),
    "lists-of-a-preset": (
        PAGE._replace(depends=("lists",)),
        "At commit {}.",
        {"lists__balanced__lower_txt": "mm"},
        "stale   pages/page.md: {}; changed since: lists/balanced/lower.txt",
    ),
    "a-file": (PAGE, "At commit {}.", {"tool_py": "2"}, "stale   pages/page.md: {}; changed since: tool.py"),
    "a-folder": (PAGE, "At commit {}.", {"data__b_txt": "2"}, "stale   pages/page.md: {}; changed since: data/b.txt"),
    "what-counts-numbers-of-other-devices": (
        PAGE._replace(depends=("src/evidence",)),
        "At commit {}.",
        {"src__evidence__numbers_by_aten_cpp": "2"},
        "current pages/page.md: {}",
    ),
    "what-counts-numbers-of-other-devices-on-one": (
        PAGE._replace(depends=("src/evidence",), needs="a GPU"),
        "## Rows\n\nAt commit {}.",
        {"src__evidence__numbers_by_aten_cpp": "2"},
        "stale   pages/page.md: {}; changed since: src/evidence/numbers_by_aten.cpp",
    ),
    "words-alone": (
        PAGE._replace(depends=("f.py",)),
        "At commit {}.",
        {"f_py": '"""Other."""\n\n\ndef f():\n    """Of f."""\n    return 1  # one\n'},
        "current pages/page.md: {}",
    ),
    "words-of-an-attribute": (
        PAGE._replace(depends=("f.py",)),
        "At commit {}.",
        {"f_py": "def f():\n    return 1\n    'Of the result.'\n"},
        "current pages/page.md: {}",
    ),
    "the-type-of-a-ClassVar": (
        PAGE._replace(depends=("g.py",)),
        "At commit {}.",
        {"g_py": "class A:\n    a: int = 1\n    b: ClassVar[int] = 1\n"},
        "current pages/page.md: {}",
    ),
    "another-annotation": (
        PAGE._replace(depends=("g.py",)),
        "At commit {}.",
        {"g_py": "class A:\n    a: str = 1\n    b: ClassVar = 1\n"},
        "stale   pages/page.md: {}; changed since: g.py",
    ),
    "words-and-code": (
        PAGE._replace(depends=("f.py",)),
        "At commit {}.",
        {"f_py": '"""Other."""\n\n\ndef f():\n    """Of f."""\n    return 2\n'},
        "stale   pages/page.md: {}; changed since: f.py",
    ),
    "a-new-definition": (
        PAGE._replace(depends=("f.py",)),
        "At commit {}.",
        {"f_py": "def f():\n    return 1\n\n\ndef g():\n    return 2\n\n\nNEW = 3\n"},
        "current pages/page.md: {}",
    ),
    "a-new-definition-that-acts": (
        PAGE._replace(depends=("f.py",)),
        "At commit {}.",
        {"f_py": "def f():\n    return 1\n\n\n@register\ndef g():\n    return 2\n"},
        "stale   pages/page.md: {}; changed since: f.py",
    ),
    "a-new-name-that-acts": (
        PAGE._replace(depends=("f.py",)),
        "At commit {}.",
        {"f_py": "def f():\n    return 1\n\n\nNEW = patched()\n"},
        "stale   pages/page.md: {}; changed since: f.py",
    ),
    "a-new-hook-of-the-module": (
        PAGE._replace(depends=("f.py",)),
        "At commit {}.",
        {"f_py": "def f():\n    return 1\n\n\ndef __getattr__(name):\n    return 2\n"},
        "stale   pages/page.md: {}; changed since: f.py",
    ),
    "a-definition-that-takes-the-place-of-another": (
        PAGE._replace(depends=("f.py",)),
        "At commit {}.",
        {"f_py": "def f():\n    return 1\n\n\nf = None\n"},
        "stale   pages/page.md: {}; changed since: f.py",
    ),
    "words-that-are-no-docstring": (
        PAGE._replace(depends=("f.py",)),
        "At commit {}.",
        {"f_py": "def f():\n    return 1\n\n\nf('text')\n"},
        "stale   pages/page.md: {}; changed since: f.py",
    ),
    "a-file-that-is-no-python": (
        PAGE._replace(depends=("f.py",)),
        "At commit {}.",
        {"f_py": "def f(:\n"},
        "stale   pages/page.md: {}; changed since: f.py",
    ),
    "many-files": (
        PAGE,
        "At commit {}.",
        {f"data__{name}_txt": "2" for name in "abcde"},
        "stale   pages/page.md: {}; changed since: data/a.txt, data/b.txt, data/c.txt and 2 more",
    ),
    "with-changes": (PAGE, "At commit {} and changes.", {}, "stale   pages/page.md: {} and changes"),
    "no-such-commit": (PAGE, "At commit 0123456.", {}, "stale   pages/page.md: 0123456; there is no such commit"),
    "a-row": (ROWS, TABLE, {}, "current pages/page.md, Rows: {}"),
    "a-row-and-a-file": (ROWS, TABLE, {"tool_py": "2"}, "stale   pages/page.md, Rows: {}; changed since: tool.py"),
    "no-section": (ROWS, "# Page\n", {}, "stale   pages/page.md, Rows: not measured yet"),
    "no-device": (PAGE._replace(needs="a GPU"), "# Page\n", {}, "not run pages/page.md: needs a GPU"),
}


@pytest.mark.parametrize(("page", "text", "changed", "line"), CASES.values(), ids=CASES)
def test_what_is_older(first, capsys, page, text, changed, line):
    commit(pages__page_md=text.format(first), **changed)
    code = check(Path.cwd(), (page,))
    stale = line.startswith("stale")
    expected = [line.format(first), *(["==> to run at this commit: make page"] if stale else [])]
    assert capsys.readouterr().out.splitlines() == expected
    assert code == stale


@pytest.mark.parametrize("text", ["No figure has a commit.", "At commit not known."], ids=["none", "not-known"])
def test_a_page_without_a_commit_is_as_old_as_its_last_change(first, text):
    written = commit(pages__page_md=text)
    (found,) = measured(PAGE, Path.cwd())
    assert str(found) == f"not known; last written in {written}"
    assert not found.is_stale
    commit(data__a_txt="2")
    (found,) = measured(PAGE, Path.cwd())
    assert str(found) == f"not known; last written in {written}; changed since: data/a.txt"


def test_a_section_is_as_old_as_its_last_change(first):
    written = commit(pages__page_md="# Page\n\n## Rows\n\nold\n\n## After\n\nold\n")
    commit(pages__page_md="# Page\n\n## Rows\n\nold\n\n## After\n\nnew\n")
    (found,) = measured(ROWS, Path.cwd())
    assert str(found) == f"not known; last written in {written}"


def test_each_commit_of_a_page_is_looked_at(first, capsys):
    second = commit(data__a_txt="2")
    commit(pages__page_md=f"One at commit {first}, two at commit {second}, three at commit {second}.\n")
    assert check(Path.cwd(), (PAGE,)) == 1
    assert capsys.readouterr().out.splitlines()[:2] == [
        f"stale   pages/page.md: {first}; changed since: data/a.txt",
        f"current pages/page.md: {second}",
    ]


def test_a_writer_names_this_commit():
    assert re.fullmatch(rf"[0-9a-f]{{9}}( and changes)?|{NOT_KNOWN}", commit_now())


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_the_table_names_what_exists(page):
    named = (page.file, *page.depends, *page.beside)
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_table_has_every_generated_page():
    """And each benchmark."""
    files = {path for page in PAGES for path in (page.file, *page.depends, *page.beside)}
    written = re.compile(r"^(?:Written by `make|.*`make (?:bench|zoo|gpu)` writes this page)", re.MULTILINE)
    pages = [path for path in (ROOT / "docs").glob("*.md") if written.search(path.read_text())]
    wanted = [*pages, *(ROOT / "docs").glob("accuracy-*.svg"), *(ROOT / "benchmarks").glob("*.py")]
    assert len(pages) >= 6
    assert [path.name for path in wanted if path.relative_to(ROOT).as_posix() not in files] == []
