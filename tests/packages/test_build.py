"""What the build promises: a module that needs only torch, with its lists inside. test_loading.py has which module is loaded."""

import importlib.metadata
import importlib.resources
import re
import subprocess
import sys
from pathlib import Path

import pytest

import habana_mp._core as _core

ROOT = Path(__file__).parent.parent.parent
PRESETS = sorted(folder.name for folder in (ROOT / "lists").iterdir())


def run(script: str) -> str:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()


def test_a_plain_import_has_hmp_and_imports_nothing_to_show_things_with() -> None:
    printed = run("""
import sys, habana_mp
print(habana_mp.hmp.convert() == habana_mp.Policy.load("hmp"), {"click", "rich", "jinja2"} & {*sys.modules})
""")
    assert printed == "True set()"


@pytest.mark.unsanitized(reason="the sanitizers are libraries that the module needs")
def test_needs_no_library_but_torch_and_the_system_s() -> None:
    dynamic = subprocess.run(["readelf", "-d", _core.__file__], capture_output=True, text=True, check=True).stdout
    needed = set(re.findall(r"\(NEEDED\).*\[lib(.*?)[.-]", dynamic))
    assert needed <= {"torch", "torch_cpu", "torch_python", "c10", "stdc++", "m", "gcc_s", "c", "pthread", "shm"}


def test_exports_nothing_but_its_init_function() -> None:
    symbols = subprocess.run(["nm", "-D", "--defined-only", _core.__file__], capture_output=True, text=True, check=True)
    exported = {name for _, kind, name in map(str.split, symbols.stdout.splitlines()) if kind == "T"}
    assert exported == {"PyInit__core"}


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_inside_the_package(preset: str) -> None:
    assert (importlib.resources.files("habana_mp") / "lists" / preset / "policy.toml").is_file()


def test_version() -> None:
    version = importlib.metadata.version("habana_mp")
    assert f'\nversion = "{version}"\n' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt"])
def test_requirements_are_pinned(name: str) -> None:
    lines = [line.split("#")[0].strip() for line in (ROOT / name).read_text().splitlines()]
    loose = [
        line for line in lines if line and not line.startswith("-r ") and not re.match(r"[\w.-]+==[\w.]+(;|$)", line)
    ]
    assert loose == []


def test_import_is_light() -> None:
    """It brings nothing along that torch has not imported; what it costs is in benchmarks/overhead.py."""
    script = """
import sys, torch
before = set(sys.modules)
import habana_mp
print(*{name.partition(".")[0] for name in sys.modules.keys() - before}, "torch._dynamo" in sys.modules)
"""
    interpreters = {"_interpreters", "_xxsubinterpreters"}  # a small part of Python, by its version
    assert {*run(script).split()} - interpreters == {"habana_mp", "False"}


IMPORTED = {
    "the-package": ("import habana_mp", ""),
    "convert": ("from habana_mp import hmp; hmp.convert(); hmp.revert()", ""),
    "a-region": ("from habana_mp import autocast; autocast('cpu')", ""),
    "report": ("from habana_mp import report", "_report"),
    "report-of-hmp": ("from habana_mp import hmp; hmp.report", "_report"),
    "explain": ("import habana_mp; habana_mp.explain", "_explain"),
    "all": ("from habana_mp import *; tune, draw", "_draw _evidence _explain _report"),
}


@pytest.mark.parametrize(("statement", "imported"), IMPORTED.values(), ids=IMPORTED)
def test_what_reports_and_measures_is_imported_when_it_is_used(statement: str, imported: str) -> None:
    script = f"""
import sys
{statement}
modules = [name.split(".") for name, module in sys.modules.items() if name.startswith("habana_mp.") and module.__spec__]
print(*sorted({{"_draw", "_evidence", "_explain", "_report"}} & {{name[1] for name in modules if len(name) > 2}}))
"""
    assert run(script) == imported


def test_is_compiled_with_one_pybind11() -> None:
    """torch's: of two, the linker would mix the inline functions, and a class registered by one is unknown to the other."""
    core = Path(_core.__file__).read_bytes()
    assert len(set(re.findall(rb"__pybind11_internals_v\d+", core))) == 1
