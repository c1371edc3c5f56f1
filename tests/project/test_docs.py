"""The code on the pages of docs/ and in the README runs as it is printed.

Blocks of a page run in order, in one folder of its own and each in a process of its own, forked from one that has torch:

    ```python                                runs; a warning is an error
    ```sh                                    runs
    ```python title="train.py"               is a file for the blocks below it; so is any block whose title is a file name, and a
                                             list file has to be one, and JSON and YAML have to be well-formed
    ```text title="output"                   is what the block above it prints to stdout; "..." stands for anything
    ```console                               is a session of habana-mp, which test_cli_docs.py runs
    ```python title="not run in the tests: a GPU"   is shown and not run; the title says why

The file is also the program that does it: test_docs.py reads a page and a folder, as JSON, from each line of stdin.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
import types
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple, TextIO

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGES = {
    path.relative_to(ROOT).as_posix(): path for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
}
LANGUAGES = {"console", "json", "python", "sh", "text", "toml", "yaml"}
# Lightning and torch.onnx warn, whatever they are given.
WARN = {"docs/trainers.md", "docs/how-to/export-and-onnx.md"}
# These pages show what one torch does; another may have changed it.
THREADS, THREADS_TORCH = "docs/threads/", "2.13"
LIST_FILES = ("lower", "fp32", "promote")


class Block(NamedTuple):
    line: int  # of the fence
    language: str
    title: str
    text: str

    @property
    def is_file(self) -> bool:
        return re.fullmatch(r"[\w./-]+\.\w+", self.title) is not None

    @property
    def runs(self) -> bool:
        return self.language in ("python", "sh") and not self.title


def blocks(text: str) -> list[Block]:
    found = []
    for match in re.finditer(r'^( *)```(\w*)(?: title="([^"\n]*)")?\n(.*?)^ *```$', text, re.MULTILINE | re.DOTALL):
        indent, language, title, code = match.groups()
        code = re.sub(f"^{indent}", "", code, flags=re.MULTILINE)
        found.append(Block(text.count("\n", 0, match.start()) + 1, language, title or "", code))
    return found


def python(block: Block, page: Path) -> int:
    """The block in a forked process, as a script of which tracebacks show the lines of the page."""

    def script() -> int:
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile("\n" * block.line + block.text, str(page), "exec"), main.__dict__)
        return 0

    return forked(script)


def forked(run: Callable[[], int]) -> int:
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 1
    try:
        status = run()
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def shell(block: Block) -> int:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(["bash", "-euc", block.text], env=os.environ | {"PATH": path}, check=False).returncode


def check_file(block: Block) -> None:
    import yaml

    from habana_mp import Policy

    name = Path(block.title)
    if block.language in ("json", "yaml"):
        json.loads(block.text) if block.language == "json" else yaml.safe_load(block.text)
    if name.suffix == ".txt" and block.language == "text":
        which = name.stem if name.stem in LIST_FILES else "lower"
        Policy.from_files(**{which: block.title}, strict=True)


def main(page: Path, folder: Path) -> int:
    """Everything on a page; tells of each block that does not do what the page says, and goes on."""
    os.chdir(folder)
    sys.path.insert(0, "")  # blocks import the files of their page, as scripts in one folder do
    failed = 0
    printed = ""
    for block in blocks(page.read_text()):
        problem = ""
        if block.is_file:
            Path(block.title).parent.mkdir(parents=True, exist_ok=True)
            Path(block.title).write_text(block.text)
            try:
                check_file(block)
            except ValueError as error:
                problem = str(error)
        elif block.title == "output":
            if not doctest.OutputChecker().check_output(block.text, printed, doctest.ELLIPSIS):
                problem = f"it prints\n{printed}"
        elif block.runs:
            with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
                with redirected(out, err):
                    status = python(block, page) if block.language == "python" else shell(block)
                printed, complained = (file.seek(0) or file.read() for file in (out, err))
            if status != 0:
                problem = f"exit status {status}\n{printed}{complained}"
        if problem:
            failed += 1
            print(f"{page.name}:{block.line}: {problem}", file=sys.stderr)
    return min(failed, 100)


@contextlib.contextmanager
def redirected(out: io.TextIOBase, err: io.TextIOBase):
    """The streams of this process and of those it starts."""
    sys.stdout.flush()
    kept = [os.dup(1), os.dup(2)]
    try:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        yield
    finally:
        for number, stream in enumerate(kept, start=1):
            os.dup2(stream, number)
            os.close(stream)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is(page):
    text = PAGES[page].read_text()
    assert len(re.findall(r"^ *```", text, re.MULTILINE)) == 2 * len(blocks(text))
    for block in blocks(text):
        known = (
            not block.title
            or block.is_file
            or block.title == "output"
            or block.title.startswith("not run in the tests: ")
        )
        assert known, f"{page}:{block.line}: {block.title!r}"
        assert block.language in LANGUAGES, f"{page}:{block.line}: {block.language!r}"


def test_every_question_is_in_the_table():
    table = (ROOT / "docs/threads.md").read_text()
    count = 0
    for page in sorted((ROOT / "docs/threads").glob("*.md")):
        for entry in re.split("^## ", page.read_text(), flags=re.MULTILINE)[1:]:
            question, _, text = entry.partition("\n")
            count += 1
            assert f"| [{question}](threads/{page.name}#" in table
            assert "https://github.com/" in text, question
            assert len([block for block in blocks(text) if block.runs]) >= 2, question
    assert f": {count} questions from" in table


def test_the_readme_has_examples():
    assert len([block for block in blocks(PAGES["README.md"].read_text()) if block.runs]) >= 3


@pytest.mark.parametrize(
    "page", [name for name, path in PAGES.items() if any(b.runs for b in blocks(path.read_text()))]
)
def test_page(page, strict, tmp_path):
    if page.startswith(THREADS) and version("torch").rpartition(".")[0] != THREADS_TORCH:
        pytest.skip(f"shows what torch {THREADS_TORCH} does")
    if page not in WARN:
        failed, text = told(strict, page, tmp_path)
    else:
        with program("-W", "default") as lenient:
            failed, text = told(lenient, page, tmp_path)
    assert not failed, text


@pytest.fixture(scope="module")
def strict():
    from subprograms import STRICT  # is not there for the program

    with program(*STRICT) as running:
        yield running


@contextlib.contextmanager
def program(*options: str):
    """It imports torch once for all its pages."""
    with subprocess.Popen(
        [sys.executable, *options, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        yield running
        running.stdin.close()


def told(running: subprocess.Popen, page: str, folder: Path) -> tuple[int, str]:
    """How many blocks of a page fail, and the errors that are printed."""
    print(json.dumps([os.fspath(PAGES[page]), os.fspath(folder)]), file=running.stdin, flush=True)
    return json.loads(running.stdout.readline())


def pages_of_stdin() -> None:
    import torch  # noqa: F401 - once for all pages
    import transformers.models.llama.modeling_llama  # noqa: F401 - takes longer than most of them

    for line in sys.stdin:
        page, folder = map(Path, json.loads(line))
        with tempfile.TemporaryFile("w+") as out, Path(os.devnull).open() as nothing:

            def run(page: Path = page, folder: Path = folder, nothing: TextIO = nothing) -> int:
                os.dup2(nothing.fileno(), 0)
                return main(page, folder)

            with redirected(out, out):
                failed = forked(run)
            out.seek(0)
            print(json.dumps([failed, out.read()]), flush=True)


if __name__ == "__main__":
    pages_of_stdin()
