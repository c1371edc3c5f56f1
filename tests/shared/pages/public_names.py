"""What docs/api.md shows: each object and its docstrings, with those of its public methods, properties and fields."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").is_file())


def documented() -> dict[str, Any]:
    """The objects by their names as the page has them: ``habana_mp.convert``, ``habana_mp.cache.info``."""
    names = re.findall(r"^::: ([\w.]+)$", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
    found: dict[str, Any] = {}
    for name in names:
        found[name] = value = _object(name)
        if inspect.ismodule(value) and name == "habana_mp.cache":
            found |= {f"{name}.{each}": getattr(value, each) for each in value.__all__}
    return found


def _object(name: str) -> Any:
    if name == "habana_mp.gaudi":  # its import has effects: the text alone
        return ast.get_docstring(ast.parse((ROOT / "habana_mp" / "gaudi" / "__init__.py").read_text(encoding="utf-8")))
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)


def own_text(value: Any) -> str:
    """The docstring of an object of ``documented``."""
    return value if isinstance(value, str) else inspect.getdoc(value) or ""


def texts(value: Any) -> dict[str, str]:
    """The docstrings of an object, by the name of the member, "" for its own."""
    found = {"": own_text(value)}
    if inspect.isclass(value):
        for base in reversed(value.__mro__):
            if base.__module__.startswith("habana_mp"):
                found |= _members(base)
    return found


def _members(kind: type) -> dict[str, str]:
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for member, after in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
            found[member.name] = ast.get_docstring(member) or ""
        elif isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name) and isinstance(after, ast.Expr):
            assert isinstance(after.value, ast.Constant)
            found[member.target.id] = inspect.cleandoc(str(after.value.value))
    return found
