"""`make matrix`: the table that it writes, what it counts, and what it says where a cell cannot be run."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools import environments, matrix
from tools.environments import PAGE, counted
from tools.matrix import CELLS, HEAD, Row, with_row

ROOT = Path(__file__).parent.parent.parent
ROW = Row("2.14.1+cu130", "3.12.1", 90, 2, 3, 41, "2026-11-22", "abcdef012")
TABLE = f"""# Versions

{HEAD}
|---|---|---|---|---|---|---|---|
| 2.11 | 3.10 | not run | | | | | |
| 2.14.0 | 3.12.1 | 1 | 0 | 0 | 1 | 2026-10-01 | 012345678 |
| 2.15 | 3.13 | not run | | | | | |

After it.
"""
SHOWN = "| 2.14.1+cu130 | 3.12.1 | 90 | 2 | 3 | 41 | 2026-11-22 | abcdef012 |"


def rows(page: str) -> list[str]:
    return [line for line in page.splitlines() if re.match(r"\| \d", line)]


def test_a_row_takes_the_place_of_the_one_of_its_cell():
    page = with_row(TABLE, ROW)
    assert rows(page) == [rows(TABLE)[0], SHOWN, rows(TABLE)[2]]
    assert page == TABLE.replace(rows(TABLE)[1], SHOWN)


@pytest.mark.parametrize(("cell", "at"), [("2.9/3.10", 0), ("2.12/3.11", 1), ("2.15/3.9", 2), ("2.16/3.13", 3)])
def test_a_new_row_is_put_in_order(cell, at):
    torch, python = cell.split("/")
    new = str(ROW._replace(torch=f"{torch}.0", python=f"{python}.0"))
    expected = rows(TABLE)
    expected.insert(at, new)
    assert rows(with_row(TABLE, ROW._replace(torch=f"{torch}.0", python=f"{python}.0"))) == expected


def test_the_page_has_a_row_for_each_cell():
    of_page = [re.match(r"\| (\d+\.\d+)\S* \| (\d+\.\d+)", row) for row in rows(PAGE.read_text())]
    assert tuple(f"{row[1]}/{row[2]}" for row in of_page if row) == CELLS


def test_the_promise_is_the_range_of_the_metadata():
    """Of torch and of Python."""
    torch = sorted({int(cell.partition("/")[0].partition(".")[2]) for cell in CELLS})
    pythons = sorted({int(cell.rpartition(".")[2]) for cell in CELLS})
    assert f'"torch>=2.{torch[0]},<2.{torch[-1] + 1}"' in (ROOT / "pyproject.toml").read_text()
    assert f"torch 2.{torch[0]} to 2.{torch[-1]} and Python 3.{pythons[0]} to 3.{pythons[-1]}" in PAGE.read_text()


REPORT = """<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="pytest" errors="2" failures="1" skipped="1" tests="5">
<testcase classname="tests.a" name="passes" />
<testcase classname="tests.a" name="fails"><failure message="no">no</failure></testcase>
<testcase classname="tests.a" name="skipped"><skipped message="no" /></testcase>
<testcase classname="tests.a" name="no_fixture"><error message="no">no</error></testcase>
<testcase classname="tests.a" name="fails"><error message="at its end">no</error></testcase>
</testsuite></testsuites>
"""


def test_tests_are_counted_once(tmp_path):
    (tmp_path / "policy.xml").write_text(REPORT)
    counts = counted(tmp_path.glob("*.xml"))
    assert counts[:3] == (1, 2, 1)
    assert counts.failures == ("policy: tests.a::fails", "policy: tests.a::no_fixture")


def test_what_was_done_for_a_commit_is_not_done_again(tmp_path, monkeypatch):
    """Nor is its environment made again, which is gone by then."""
    monkeypatch.setattr(matrix, "FOLDER", tmp_path)
    results = tmp_path / "torch2.13-py3.99" / "abcdef012"
    results.mkdir(parents=True)
    (results / "done").write_text("2.13.0+cpu\n3.99.1\n2026-11-22")
    for part, seconds in (("policy", "61.5"), ("scope", "60.0")):
        (results / f"{part}.xml").write_text(REPORT)
        (results / f"{part}.seconds").write_text(seconds)
    row, failures = matrix.run("2.13/3.99", "abcdef012", jobs=1, keep=False)
    assert row == Row("2.13.0+cpu", "3.99.1", 2, 4, 2, 2, "2026-11-22", "abcdef012")
    assert len(failures) == 4
    assert [path.name for path in results.parent.iterdir()] == ["abcdef012"]
    with pytest.raises(matrix.CannotRun, match=r"there is no Python 3.99 here"):
        matrix.run("2.13/3.99", "another00", jobs=1, keep=False)


def git(where, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    command = ["git", "-C", str(where), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_kept_clone_goes_on_to_the_next_commit(tmp_path, monkeypatch):
    checkout, tree = tmp_path / "checkout", tmp_path / "tree"
    checkout.mkdir()
    monkeypatch.setattr(matrix, "ROOT", checkout)
    git(checkout, "init", "--quiet")
    for text in ("first", "second"):
        (checkout / "file").write_text(text)
        git(checkout, "add", "file")
        git(checkout, "commit", "--quiet", "--message", text)
        matrix._check_out(tree, tmp_path / "log", git(checkout, "rev-parse", "--short=9", "HEAD"))
        assert (tree / "file").read_text() == text


GREEN = '<testsuites><testsuite><testcase classname="tests.a" name="passes" /></testsuite></testsuites>'
TAKEN_OVER = {
    "another-part": ("tests/policy/b", GREEN, True),
    "this-part": ("tests/scope/a", GREEN, False),
    "what-parts-share": ("tests/conftest.py", GREEN, False),
    "the-package": ("habana_mp/hmp.py", GREEN, False),
    "the-row-that-it-wrote": ("docs/versions.md", GREEN, True),
    "a-tool": ("tools/gpu.py", GREEN, True),
    "a-page-that-it-reads": ("docs/lists.md", GREEN, False),
    "a-benchmark": ("benchmarks/decode.py", GREEN, True),
    "the-readme": ("README.md", GREEN, True),
    "a-script-of-users": ("examples/gpt.py", GREEN, False),
    "it-was-red": ("tests/policy/b", REPORT, False),
}


@pytest.mark.parametrize(("changed", "report", "taken"), TAKEN_OVER.values(), ids=TAKEN_OVER)
def test_a_part_is_not_run_again_for_tests_of_other_parts(tmp_path, monkeypatch, changed, report, taken):
    checkout, folder = tmp_path / "checkout", tmp_path / "cell"
    monkeypatch.setattr(environments, "ROOT", checkout)
    checkout.mkdir()
    git(checkout, "init", "--quiet")
    commits = []
    for text in ("first", "second"):
        (checkout / changed).parent.mkdir(parents=True, exist_ok=True)
        (checkout / changed).write_text(text)
        git(checkout, "add", changed)
        git(checkout, "commit", "--quiet", "--message", text)
        commits.append(git(checkout, "rev-parse", "--short=9", "HEAD"))
        (folder / commits[-1]).mkdir(parents=True)
    earlier, results = (folder / commit for commit in commits)
    (earlier / "scope.xml").write_text(report)
    (earlier / "scope.seconds").write_text("61.5")
    assert matrix._taken_over(folder, results, "scope", ["policy", "scope"]) is taken
    assert sorted(path.name for path in results.iterdir()) == (["scope.seconds", "scope.xml"] if taken else [])


CANNOT = [
    ("2.13/3.99", "2.13/3.99: there is no Python 3.99 here"),
    ("2.13", "2.13: a cell is torch/Python, such as 2.15/3.12, or next"),
]


@pytest.mark.parametrize(("cell", "words"), CANNOT, ids=[cell for cell, _ in CANNOT])
def test_a_cell_that_cannot_be_run_says_why(cell, words):
    before = PAGE.read_text()
    done = subprocess.run(
        [sys.executable, "-m", "tools.matrix", cell], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.stdout.splitlines()[-1] == words
    assert done.returncode == 1
    assert PAGE.read_text() == before


def strings_and_imports(path):
    """The strings of the code, without docstrings, and the modules that it imports."""
    nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    yield from (node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module)
    yield from (alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names)
    prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    yield from (
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose
    )


@pytest.mark.parametrize("read", matrix._READ_BY)
def test_a_part_that_names_what_few_read_is_one_of_them(read):
    named = re.compile(rf"(^|[^\w.-]){re.escape(read.rstrip('/'))}(/|\.|$)")

    def names_it(path, shared=frozenset()):
        return any(named.search(text) or text in shared for text in strings_and_imports(path))

    tests = environments.ROOT / "tests"
    shared = {path.stem for path in (tests / "shared").rglob("*.py") if names_it(path)}
    reads = {
        part for part in matrix.parts(tests.parent) for path in (tests / part).rglob("*.py") if names_it(path, shared)
    }
    assert reads <= matrix._READ_BY[read]
