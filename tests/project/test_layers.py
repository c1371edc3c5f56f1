"""Arrows between the modules of the package that lint-imports does not see (pyproject.toml): modules named in strings, and the package itself."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import habana_mp

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "habana_mp"
MODULES = sorted(path.relative_to(ROOT) for path in PACKAGE.rglob("*.py") if path.parent.name != "for_children")

LAYERS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]["layers"]
# 0 is on top. The compiled core lies below all.
PLACES = {name: place for place, layer in enumerate(LAYERS) for name in layer.split(" | ")} | {"_core": len(LAYERS)}


def part_of(module: str) -> str:
    """The file or folder right below the package that a module is of: "_policy" of "habana_mp._policy.homes"."""
    return module.split(".")[1]


def name_of(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_the_package_itself_is_imported_for_its_modules_alone(path: Path) -> None:
    """``from habana_mp import convert`` would be an arrow up to all of it."""
    taken = {
        alias.name
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
        if (node.module if isinstance(node, ast.ImportFrom) else alias.name) == "habana_mp"
    }
    modules = {other.stem for other in PACKAGE.iterdir()}
    assert taken <= modules


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_modules_named_in_strings_lie_no_higher(path: Path) -> None:
    """What is imported by its name in a string, or asked for by it, is an arrow that lint-imports does not see."""
    module = name_of(path)
    if module == "habana_mp":
        return
    strings = {node.value for node in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(node, ast.Constant)}
    named = {text for text in strings if isinstance(text, str) and text.startswith("habana_mp.")}
    assert {text for text in named if PLACES.get(part_of(text), len(LAYERS)) < PLACES[part_of(module)]} == set()


def test_the_public_names_are_found_in_hmp() -> None:
    assert habana_mp.hmp.__all__ == habana_mp.__all__
    assert [name for name in habana_mp.__all__ if getattr(habana_mp, name) is not getattr(habana_mp.hmp, name)] == []
