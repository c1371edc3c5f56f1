"""Which generated pages are older than what they show: `make release-check`. Their writers take the commit that they name from here.

A page, or a section of one, is a row of PAGES with the files that its figures depend on. It names the commit that it was measured at
("commit 0123456ab", or a row of a table that ends with a date and a commit). A page that names none is as old as the last commit that
changed it. Not here is what is made from the tree whenever it is read (docs/presets.md, docs/api.md) or runs in the tests, and what sums
others up (docs/benchmarks.md). Docstrings, comments, and functions and names that are new and not used count where tests run alone. Knows git and the
standard library alone.
"""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
NOT_KNOWN = "not known"
CHANGES = " and changes"  # behind a commit: files were changed and not committed
MOST = 3  # files that a line names

ENGINE = (
    *(f"habana_mp/{name}" for name in "_autocast _cast.py _convert _loading.py _policy _scope _torch_private.py _weights.py cache".split()),
    *(f"src/{name}" for name in "autocast base bind call cast convert kernels listen policy scope weights".split()),
    "lists", "CMakeLists.txt", "requirements.txt",
)  # fmt: skip
COMPILED = (*ENGINE, "habana_mp/_compiled")  # what runs where something is compiled, too
REPORT = (*ENGINE, "habana_mp/_report", "habana_mp/_watch", "src/report", "src/watch", "src/probe", "src/evidence")
INSTRUMENTS = (*REPORT, "habana_mp/_evidence")
# A worker of the zoo, and what counts its findings. Reasons and templates are words beside them.
ZOO = ("zoo/__init__.py", "zoo/cases", "zoo/workers.py", "zoo/findings.py")
MODELS = ("zoo/small_models.py", "zoo/differences.py")  # of the zoo, what benchmarks run
TIMING = (*(f"benchmarks/harness/{name}.py" for name in ("device", "rows", "timing")), "benchmarks/subjects")
SUITE = (
    "habana_mp", "src", "lists", "tests", "examples", "CMakeLists.txt", "pyproject.toml", "requirements.txt", "requirements-dev.txt",
)  # fmt: skip
# No other page depends on these: what `make bench` writes beside the pages, the goals of contributors, and the figures of a preset, which are
# comments: its settings are those of tools/tune_presets.py, and its lists lie in other files.
_FIGURES = (
    "benchmarks/results.json",
    "benchmarks/goals.md",
    "benchmarks/goals.toml",
    "benchmarks/figures.toml",
    "lists/balanced/policy.toml",
)
# What no figure of a CPU comes from: it counts the numbers of other devices.
_OTHER_DEVICES = ("src/evidence/numbers_by_aten.cpp",)


class Page(NamedTuple):
    """A page, or the section of it with this heading, and what its figures depend on: files and folders."""

    file: str
    made_by: str
    depends: tuple[str, ...]
    section: str = ""
    beside: tuple[str, ...] = ()  # pictures and files that are written with it
    needs: str = ""  # a device that few machines have: without it the page may have no section yet

    def __str__(self) -> str:
        return f"{self.file}, {self.section}" if self.section else self.file


def _table(section: str, script: str, depends: tuple[str, ...], *beside: str) -> Page:
    where = ("benchmarks-tables", section) if section != "Losses" else ("accuracy", "")
    return Page(f"docs/{where[0]}.md", "make bench", (*depends, *TIMING, script), where[1], beside)


PAGES = (
    _table("Inference", "benchmarks/inference.py", ENGINE, "docs/inference.svg"),
    _table("Decoding", "benchmarks/decode.py", COMPILED),
    _table("Linear layers", "benchmarks/linear.py", ENGINE),
    _table("Compiled models", "benchmarks/compiled.py", COMPILED),
    _table("Training", "benchmarks/training.py", ENGINE, "docs/training.svg"),
    _table("Memory", "benchmarks/memory.py", ENGINE),
    _table("Overhead", "benchmarks/overhead.py", REPORT),
    _table("Kernels", "benchmarks/kernels.py", ("src/kernels", "src/base", "benchmarks/kernels.cpp"), "docs/kernels.svg"),
    _table("Casts", "benchmarks/casts.py", ENGINE, "docs/casts.svg"),
    _table("Values", "benchmarks/values.py", (*INSTRUMENTS, *MODELS)),
    _table("Tuning", "benchmarks/tuner.py", (*INSTRUMENTS, *MODELS)),
    _table("Advice", "benchmarks/advice.py", (*INSTRUMENTS, *MODELS)),
    _table("Losses", "benchmarks/accuracy.py", (*INSTRUMENTS, "examples"), *(f"docs/accuracy-{number}.svg" for number in (1, 2, 3))),
    Page("docs/accuracy.md", "make bench", (*INSTRUMENTS, *TIMING, "benchmarks/eight_bits.py"), "Inference in 8 bits on trained models"),
    Page("docs/benchmarks-gpu.md", "make gpu", (*REPORT, *COMPILED, "benchmarks"), needs="a GPU"),
    Page("docs/compatibility.md", "make zoo", (*ENGINE, *ZOO, "zoo/page.py")),
    Page("docs/instruments.md", "make zoo", (*INSTRUMENTS, *ZOO, "zoo/looked.py")),
    Page("docs/compiled.md", "make zoo", (*COMPILED, *ZOO, "zoo/compiled.py")),
    Page("docs/versions.md", "make matrix", SUITE, "Versions"),
    Page("docs/versions.md", "make package-test", (
        "habana_mp", "src", "lists", "CMakeLists.txt", "pyproject.toml", "tools/newcomer.py", "tools/old_linux.cpp", "tools/package_page.py",
        "tools/torch_to_build_for.py", "tools/wheel.py",
    ), "Packages"),
    Page("docs/versions.md", "make aarch64, make gpu, make test", SUITE, "Devices"),
    Page("lists/balanced/policy.toml", "make tune-presets", (
        *(path for path in ENGINE if path != "lists"), "lists/torch-cpu", "lists/torch-cuda", "tools/tune_presets.py", "zoo/small_models.py",
    ), "", tuple(f"lists/balanced/{name}.txt" for name in ("fp32", "lower", "promote"))),
    Page("docs/report.png", "make picture", (*REPORT, "habana_mp/_show", "habana_mp/templates", "examples/rotary.py", "tools/picture.py")),
)  # fmt: skip


class Measured(NamedTuple):
    """A commit that a page was measured at, and what has changed since of what it depends on."""

    commit: str  # empty: nothing is measured yet
    is_known: bool = True  # else the last one that changed the page
    with_changes: bool = False  # measured with files that were not committed
    is_there: bool = True
    changed: tuple[str, ...] = ()

    @property
    def is_stale(self) -> bool:
        return bool(self.changed) or self.with_changes or not self.is_there or not self.commit

    def __str__(self) -> str:
        if not self.commit:
            return "not measured yet"
        where = self.commit if self.is_known else f"{NOT_KNOWN}; last written in {self.commit}"
        if not self.is_there:
            return f"{where}; there is no such commit"
        more = f" and {len(self.changed) - MOST} more" if len(self.changed) > MOST else ""
        since = f"; changed since: {', '.join(self.changed[:MOST])}{more}" if self.changed else ""
        return where + (CHANGES if self.with_changes else "") + since


def commit_now() -> str:
    """The commit of this checkout, for the page that a run writes: "0123456ab", "0123456ab and changes" of what a page depends on, or "not known"
    in a copy that is no clone. A run asks before it measures.
    """
    depends = sorted({path for page in PAGES for path in page.depends})
    try:
        commit = _git(ROOT, "rev-parse", "--short=9", "HEAD")
        changed = _git(ROOT, "status", "--porcelain", "--untracked-files=no", "--", *depends, *_without(*_FIGURES))
    except (OSError, subprocess.CalledProcessError):
        return NOT_KNOWN
    return commit + CHANGES * bool(changed)


_NAMED = re.compile(rf"(?:\bcommit |\| \d{{4}}-\d\d-\d\d \| )([0-9a-f]{{7,40}}|{NOT_KNOWN})({CHANGES})?\b")


def measured(page: Page, root: Path = ROOT) -> Iterator[Measured]:
    """A value for each commit that the page names, as HEAD has it."""
    lines = _git(root, "show", f"HEAD:{page.file}").splitlines()
    on_a_cpu = not page.needs and "src" not in page.depends
    first, last = _lines_of(lines, page.section)
    if first == last or (page.needs and not any(line.startswith("## ") for line in lines)):
        yield Measured("")
        return
    named = dict.fromkeys(_NAMED.findall("\n".join(lines[first:last]))) or {(NOT_KNOWN, ""): None}
    for commit, changes in named:
        is_known = commit != NOT_KNOWN
        if not is_known:
            commit = _last_written(root, page, first, last)
        try:
            files = _git(
                root,
                "diff",
                "--name-only",
                commit,
                "HEAD",
                "--",
                *page.depends,
                *_without(page.file, *page.beside, *_FIGURES, *(_OTHER_DEVICES if on_a_cpu else ())),
            )
        except subprocess.CalledProcessError:
            yield Measured(commit, is_known, bool(changes), is_there=False)
        else:
            changed = tuple(files.splitlines())
            if "tests" not in page.depends:  # which read the words, too
                changed = _with_other_code(root, commit, changed)
            yield Measured(commit, is_known, bool(changes), changed=changed)


def _with_other_code(root: Path, commit: str, files: tuple[str, ...]) -> tuple[str, ...]:
    """Not looked at are those behind the ones that a line names."""
    found: list[str] = []
    for number, file in enumerate(files):
        if len(found) == MOST:
            return (*found, *files[number:])
        if not _has_same_code(root, commit, file):
            found.append(file)
    return tuple(found)


def _has_same_code(root: Path, commit: str, file: str) -> bool:
    if not file.endswith(".py"):
        return False
    try:
        before, now = (ast.parse(_git(root, "show", f"{each}:{file}")) for each in (commit, "HEAD"))
    except (subprocess.CalledProcessError, SyntaxError, ValueError):  # it is new, or gone
        return False
    now.body = [line for line in now.body if not _is_new(line, before)]
    return _code_of(before) == _code_of(now)


def _is_new(line: ast.stmt, before: ast.Module) -> bool:
    """A definition that does nothing by itself, of a name that the file did not use: who uses it now has changed, too."""
    if isinstance(line, ast.FunctionDef) and not line.decorator_list and not line.name.startswith("__"):
        name, acts = line.name, any(isinstance(node, ast.Call) for node in ast.walk(line.args))
    elif isinstance(line, ast.Assign) and len(line.targets) == 1 and isinstance(line.targets[0], ast.Name):
        name, acts = line.targets[0].id, not _only_names(line.value)
    else:
        return False
    return not acts and not re.search(rf"\b{name}\b", ast.unparse(before))


def _only_names(value: ast.expr) -> bool:
    """A constant, or private names of torch."""
    return isinstance(value, ast.Constant) or ast.unparse(value).startswith("Feature(")


def _code_of(tree: ast.Module) -> str:
    return ast.dump(_WithoutWords().visit(tree))


class _WithoutWords(ast.NodeTransformer):
    """Without docstrings, those of attributes too, and without the types of ClassVars, which nothing reads."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        if ast.unparse(node.annotation).startswith("ClassVar"):
            node.annotation = ast.Name("ClassVar")
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str) else node


def _lines_of(lines: list[str], section: str) -> tuple[int, int]:
    """From a heading to the next one that is no smaller than `##`. Nothing if there is none."""
    if not section:
        return 0, len(lines)
    heads = [number for number, line in enumerate(lines) if re.match("##? ", line)] + [len(lines)]
    for first, last in itertools.pairwise(heads):
        if lines[first].lstrip("# ") == section:
            return first, last
    return 0, 0


def _last_written(root: Path, page: Page, first: int, last: int) -> str:
    lines = ("-s", f"-L{first + 1},{last}:{page.file}") if page.section else ("--", page.file)
    return _git(root, "log", "-1", "--format=%h", "--abbrev=9", *lines)


def _without(*files: str) -> list[str]:
    return [f":(exclude){file}" for file in files]


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(root), *arguments], capture_output=True, text=True, errors="replace", check=True
    ).stdout.strip()


def check(root: Path = ROOT, pages: tuple[Page, ...] = PAGES) -> int:
    """Prints a line for each page and commit; 1 if one is older than what it shows, else 0."""
    again: dict[str, None] = {}
    for page in pages:
        for each in measured(page, root):
            if page.needs and not each.commit:
                print(f"not run {page}: needs {page.needs}")
                continue
            print(f"{'stale  ' if each.is_stale else 'current'} {page}: {each}")
            if each.is_stale:
                again[page.made_by] = None
    if again:
        print(f"==> to run at this commit: {'; '.join(again)}")
    return int(bool(again))


if __name__ == "__main__":
    sys.exit(check())
