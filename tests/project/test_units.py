"""The plan of the folders, where neither the compiler nor import-linter looks: circles of C++ files, Python modules that C++ names, the
size of folders, and paths that the documentation and the comments name.
"""

from __future__ import annotations

import graphlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parent.parent.parent
MOST_UNITS = 12
CODE = {".cpp", ".css", ".h", ".html", ".inc", ".js", ".py", ".pyi", ".so"}
SOURCES = {
    path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted((ROOT / "src").rglob("*")) if path.is_file()
}
PAGE = (ROOT / "docs" / "architecture.md").read_text()

INCLUDE = re.compile(r'^#include "((\w+)/\w+)\.(?:h|inc)"', re.MULTILINE)
FOLDER = re.compile(
    r"^ *habana_mp_folder\((\w+)\s+(?:FOR \S+\s+)?(?:SEES\s+([\w\s]+?)\s+)?(?:LINKS|SOURCES)\b", re.MULTILINE
)
# A type of the core has its own name in a string: "habana_mp._core.PatchedFunctionBase".
MODULE_IN_STRING = re.compile(
    r'"[^"\n]*\bhabana_mp\.(?=\w)(?!_core\.[A-Z]\w+")[^"\n]*"|\w*[iI]mport\w*\(\s*"habana_mp"'
)
FIRST = "src|habana_mp|tests|docs|lists|tools|examples|benchmarks|zoo"
NAMED_FILE = re.compile(rf"(?<![\w/.:<-])(?:{FIRST})/[\w/.-]*\.(?:cpp|h|inc|md|pyi?|sh|svg|txt)\b")
LOCK = re.compile(
    r"std::(?:\w+_)?mutex\b|\bcall_once\b|condition_variable|spdlog::\w+_mt\b|\b(?:R?Lock|Semaphore)\(|\bcached_property\b"
)
OWN_LOCKS = {"src/base/fork_safe_mutex.h", "habana_mp/_scope/fork_lock.py"}
NAMED_IN_PAGE = re.compile(rf"`((?:{FIRST})/[\w/.-]*)`")


def unit_of(path: str) -> str:
    """A header and its source are one unit: "policy/names" of "src/policy/names.h"."""
    return path.removeprefix("src/").partition(".")[0]


def arrows(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Each unit with the units that it includes."""
    found: dict[str, set[str]] = {}
    for path, text in sources.items():
        unit = unit_of(path)
        found.setdefault(unit, set()).update({other for other, _ in INCLUDE.findall(text)} - {unit})
    return found


def circle(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """The units of one circle, empty where there is none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return [*error.args[1]]
    return []


def folders(cmake: str) -> dict[str, set[str]]:
    """The folders of src/ from the lowest, each with those that CMake lets it see directly. bind sees all and is no target of its own."""
    found: dict[str, set[str]] = {}
    for folder, sees in FOLDER.findall(cmake):  # base twice: what of it speaks to Python is a part of its own
        found.setdefault(folder, set()).update(sees.split())
    return found | {"bind": set(found)}


def upward(order: Iterable[str], sources: Mapping[str, str]) -> list[str]:
    """Includes of a folder that does not lie below."""
    places = {folder: place for place, folder in enumerate(order)}
    found = []
    for path, text in sources.items():
        own = path.split("/")[1]
        for unit, other in INCLUDE.findall(text):
            if other != own and places.get(other, len(places)) >= places[own]:
                found.append(f"{path} includes {unit}")
    return found


def modules_in_strings(sources: Mapping[str, str]) -> list[str]:
    return [f"{path}: {match[0]}" for path, text in sources.items() for match in MODULE_IN_STRING.finditer(text)]


def crowded(paths: Iterable[str]) -> dict[str, int]:
    """Folders with more units than a reader can hold. Pickles, lists and other data are no units."""
    units = {
        (path.rpartition("/")[0], Path(path).name.partition(".")[0]) for path in paths if Path(path).suffix in CODE
    }
    counts: dict[str, int] = {}
    for folder, _ in units:
        counts[folder] = counts.get(folder, 0) + 1
    return {folder: count for folder, count in counts.items() if count > MOST_UNITS}


def glossary(page: str) -> dict[str, list[str]]:
    """The words of the table whose last column says where a word lives, each with the paths there."""
    table = page.split("| word | what it means | where it lives |\n|---|---|---|\n")[1].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
    return {row[0]: re.findall(r"`([^`]+)`", row[-1]) for row in rows}


def missing(paths: Iterable[str]) -> list[str]:
    return sorted({path for path in paths if not (ROOT / path).exists()})


def text_files() -> dict[str, str]:
    """What names files of the project: code, scripts and pages. habana_mp/lists is a link."""
    found = [ROOT / name for name in ("CHANGELOG.md", "CMakeLists.txt", "Makefile", "README.md", "pyproject.toml")]
    for folder in FIRST.split("|"):
        found += [path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in CODE - {".so"} | {".md", ".sh"}]
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in found}


def test_no_circle_of_cpp_units() -> None:
    assert circle(arrows(SOURCES)) == []


def test_a_circle_is_found_across_header_and_source() -> None:
    sources = {
        "src/a/x.h": "",
        "src/a/x.cpp": '#include "a/x.h"\n#include "b/y.h"\n',
        "src/b/y.h": '#include "a/x.h"\n',
    }
    assert circle(arrows(sources)) == ["a/x", "b/y", "a/x"]
    assert circle(arrows(sources | {"src/b/y.h": ""})) == []


def test_folders_include_only_what_lies_below() -> None:
    sees = folders((ROOT / "CMakeLists.txt").read_text())
    assert set(sees) == {path.split("/")[1] for path in SOURCES}
    seen: set[str] = set()
    for folder, below in sees.items():
        assert below <= seen, f"CMakeLists.txt: {folder} sees {sorted(below - seen)}, which come after it"
        seen.add(folder)
    assert upward(sees, SOURCES) == []


def seen_from(sees: Mapping[str, set[str]], *folders: str) -> set[str]:
    """The folders with all that they see, directly or not."""
    found = {*folders}
    for folder in reversed(sees):  # from the highest
        if folder in found:
            found |= sees[folder]
    return found


def test_the_engine_sees_none_of_the_instruments() -> None:
    engine = seen_from(folders((ROOT / "CMakeLists.txt").read_text()), "convert", "autocast")
    assert engine == {"autocast", "base", "call", "cast", "convert", "kernels", "listen", "policy", "scope", "weights"}


def test_what_is_seen_over_another_folder_is_found() -> None:
    assert seen_from({"a": set(), "b": {"a"}, "c": {"b"}, "d": {"a"}}, "c") == {"a", "b", "c"}


def test_an_include_that_runs_up_is_found() -> None:
    cmake = "# habana_mp_folder(FOLDER [SEES FOLDER...])\nhabana_mp_folder(low SOURCES a.cpp)\n  habana_mp_folder(high FOR ${version} SEES low LINKS t\n  SOURCES b.cpp)\n"
    sees = folders(cmake)
    assert sees == {"low": set(), "high": {"low"}, "bind": {"low", "high"}}
    sources = {"src/low/a.cpp": '#include "high/b.h"\n', "src/high/b.cpp": '#include "low/a.h"\n#include "high/b.h"\n'}
    assert upward(sees, sources) == ["src/low/a.cpp includes high/b"]
    assert upward(sees, {"src/low/a.cpp": '#include "new/c.h"\n'}) == ["src/low/a.cpp includes new/c"]


def test_cpp_names_no_module_of_the_package() -> None:
    assert modules_in_strings(SOURCES) == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('import("habana_mp._report").attr("name_of")', True),
        ('import("habana_mp._core")', True),
        ('PyImport_ImportModule("habana_mp")', True),
        ('make_type("habana_mp._core.PatchedMethodBase", "A patched op that binds.", true)', False),
        ('registerFallback(kKey, kernel, "habana_mp: ops without a rule")', False),
        ("// habana_mp._core.DTYPES names these in this order.", False),
    ],
)
def test_what_names_a_module(line: str, found: bool) -> None:
    assert bool(modules_in_strings({"src/a/x.cpp": line})) == found


def other_locks(sources: Mapping[str, str]) -> list[str]:
    """Locks that a forked process may inherit taken, from a thread that it does not have."""
    return [f"{path}: {match[0]}" for path, text in sources.items() for match in LOCK.finditer(text)]


def test_every_lock_is_one_that_a_fork_waits_for() -> None:
    python = {path.relative_to(ROOT).as_posix(): path.read_text() for path in (ROOT / "habana_mp").rglob("*.py")}
    assert {line.partition(":")[0] for line in other_locks(SOURCES | python)} == OWN_LOCKS


@pytest.mark.parametrize(
    "line", ["std::mutex m;", "std::shared_mutex m;", "_lock = threading.Lock()", "@functools.cached_property"]
)
def test_another_lock_is_found(line: str) -> None:
    assert other_locks({"x": line}) != []


def test_no_folder_has_more_files_than_a_reader_can_hold() -> None:
    roots = (ROOT / "habana_mp", ROOT / "src", ROOT / "tests", ROOT / "zoo")
    assert crowded(path.relative_to(ROOT).as_posix() for root in roots for path in root.rglob("*")) == {}


def test_a_crowded_folder_is_found() -> None:
    pairs = [f"src/a/unit{number}.{suffix}" for number in range(MOST_UNITS) for suffix in ("h", "cpp")]
    data = [f"src/a/{number}.pkl" for number in range(MOST_UNITS)]
    assert crowded(pairs + data) == {}
    assert crowded([*pairs, "src/a/one_more.h"]) == {"src/a": MOST_UNITS + 1}


def test_every_word_of_the_glossary_lives_somewhere() -> None:
    words = glossary(PAGE)
    assert len(words) > 30
    assert [word for word, paths in words.items() if not paths] == []
    assert missing(path for paths in words.values() for path in paths) == []


def test_a_word_without_a_place_is_found() -> None:
    page = "| word | what it means | where it lives |\n|---|---|---|\n| home | A name. | `src/no/such.h` |\n| op | `x` | gone |\n\n| a |\n"
    assert glossary(page) == {"home": ["src/no/such.h"], "op": []}
    assert missing(["src/no/such.h", "src/policy/"]) == ["src/no/such.h"]


def test_paths_that_the_page_names_exist() -> None:
    assert missing(NAMED_IN_PAGE.findall(PAGE)) == []


def test_the_picture_has_every_layer() -> None:
    picture = (ROOT / "docs" / "layers.svg").read_text()
    drawn = re.findall(r'class="m"[^>]*>(\w+)<', picture)
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    python = {name for layer in contracts[0]["layers"] for name in layer.split(" | ")}
    cpp = {path.split("/")[1] for path in SOURCES}
    assert sorted({*python, *cpp} - {*drawn}) == []


def test_files_that_are_named_exist() -> None:
    made_up = {"lists/my.txt"}
    named = {path for text in text_files().values() for path in NAMED_FILE.findall(text)}
    assert len(named) > 100
    assert [
        f"{file}: {path}"
        for path in missing(named - made_up)
        for file, text in text_files().items()
        if file != Path(__file__).relative_to(ROOT).as_posix() and path in text
    ] == []


def test_a_file_that_is_gone_is_found() -> None:
    comment = "// As habana_mp/_gone.py does (src/policy/names.h), https://example.org/docs/page.md"
    assert missing(NAMED_FILE.findall(comment)) == ["habana_mp/_gone.py"]
