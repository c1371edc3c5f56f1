"""The ops that a module calls, read from the source of its class: what a user asks of who knows the module and not its ops."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch

import habana_mp._core as _core
from habana_mp._policy.homes import aten_tensor_arguments
from habana_mp._policy.names import known_names

_NN = "torch.nn."


def module_named(text: str) -> type[torch.nn.Module] | None:
    """The class of torch.nn by its name, with or without "torch" and "nn" before it; None for another text."""
    found = getattr(torch.nn, text.removeprefix("torch.nn.").removeprefix("nn."), None)
    return found if isinstance(found, type) and issubclass(found, torch.nn.Module) else None


def ops_of(kind: type[torch.nn.Module], decides: Callable[[str], bool]) -> list[str]:
    """The ops that compute in the forward of a module and of the modules that it makes, in the order of the source.

    Functions of torch.nn and of the class's own package are followed; one that ``decides`` is an op: what it calls has no rule of its own.
    """  # (D19)
    found: dict[str, None] = {}
    package = kind.__module__.partition(".")[0]
    followed = (_NN,) if package == "torch" else (_NN, f"{package}.")
    waiting: list[tuple[FunctionType, type[torch.nn.Module]]] = [*_functions_of(kind)]
    seen = {function for function, _ in waiting}
    while waiting:
        function, owner = waiting.pop(0)
        for name, called in _calls(function, owner):
            if isinstance(called, type) and issubclass(called, torch.nn.Module):
                new = [*_functions_of(called)]
            elif isinstance(called, FunctionType) and not decides(name):
                new = [(called, owner)] if f"{called.__module__}.".startswith(followed) else []
            else:
                new = []
                if (
                    name in known_names()
                    and _core.computes(name)
                    and (called is not None or name in aten_tensor_arguments())
                ):
                    found[name] = None
            waiting += [each for each in new if each[0] not in seen]
            seen.update(each for each, _ in new)
    return [*found]


def _functions_of(kind: type[torch.nn.Module]) -> Iterator[tuple[FunctionType, type[torch.nn.Module]]]:
    for name in ("forward", "__init__"):
        function = getattr(kind, name)
        if isinstance(function, FunctionType):
            yield function, kind


def _calls(function: FunctionType, owner: type[torch.nn.Module]) -> Iterator[tuple[str, Any]]:
    """The name and the object of each call in a function; None for an object that is known only when it runs."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):
        return
    is_made = function.__name__ == "__init__"
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for called in sorted(calls, key=lambda node: (node.lineno, node.col_offset)):
        name, value = _object(called, function, owner)
        # A constructor makes modules; it computes nothing that a call of the module does.
        if name and (not is_made or isinstance(value, type)):
            yield name, value


def _object(node: ast.expr, function: FunctionType, owner: type[torch.nn.Module]) -> tuple[str, Any]:
    path: list[str] = []
    while isinstance(node, ast.Attribute):
        path.insert(0, node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return (path[-1], None) if path and hasattr(torch.Tensor, path[-1]) else ("", None)
    if node.id == "self" and len(path) == 1:
        method = getattr(owner, path[0], None)
        return path[0], method if isinstance(method, FunctionType) else None
    value = function.__globals__.get(node.id)
    name = path[-1] if path else node.id
    if value is None:  # a local name: a tensor, as far as anybody can say
        return (name, None) if path and hasattr(torch.Tensor, name) else ("", None)
    for part in path:
        value = getattr(value, part, None)
    return name, inspect.unwrap(value) if callable(value) else value  # of a patched op the original
