"""What torch.compile needs: its tables made over torch's own functions, its graphs and caches kept apart by policy.

Dynamo knows torch's functions by identity, in tables that it builds once, partly at import and partly at first use. Built while
patches are in place they would take the patched op for torch's own and trace it as one opaque op. So Dynamo is imported, and its
tables are built, over the originals; nothing here imports it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import torch

from habana_mp import _core

_NAME = "torch._dynamo"


def _build_tables() -> None:
    from torch._dynamo import trace_rules
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

    trace_rules.get_torch_obj_rule_map()
    trace_rules.get_tensor_method()
    TorchInGraphFunctionVariable._get_handlers()


class _Loader(importlib.abc.Loader):
    """Loads Dynamo with the patches out of the way."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self.loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        _core.suspend()
        try:
            self.loader.exec_module(module)
            _build_tables()
        finally:
            _core.resume()


class _Finder(importlib.abc.MetaPathFinder):
    """Notices the first import of Dynamo."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _NAME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


_finder = _Finder()


def prepare() -> None:
    """Sees to it that Dynamo's tables are built over the originals, now or when it is imported."""
    if _NAME in sys.modules:
        if not _core.is_installed():
            _build_tables()
    elif _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def patches(policy: Any) -> Iterator[tuple[Any, ...]]:
    """Calls of Tensor methods stand in a graph by name, casts and all unseen: the caches on disk must be told of the policy."""
    from torch.compiler import config

    tag = config.cache_key_tag
    before = tag.partition("habana_mp:")[0]
    yield config, "cache_key_tag", f"{before}habana_mp:{hash(policy._core):x}", before


def drop_stale_graphs() -> None:
    """Graphs compiled under another policy hold its casts; compiled functions compile again at their next call."""
    if _NAME in sys.modules:
        torch._dynamo.reset()
