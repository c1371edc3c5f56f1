"""Regions of autocast in traced code, which knows them by name: a string is what torch.compile takes for a constant.

It runs what is marked as constant while it traces; what ``_prepare`` has allowed it puts into its graphs as it is, and runs it while it
traces too.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from typing import Any

import torch

import habana_mp._core as _core
from habana_mp._torch_private import TRACE_END, run_while_traced

_numbers = itertools.count()
_regions: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_kept: dict[str, Any] = {}


def remember(region: Any) -> str:
    """The name of a region from now on, as long as it lives."""
    key = f"region {next(_numbers)}"
    _regions[key] = region
    return key


def region(key: str) -> Any:
    return _regions[key]


def keep(key: str, region: Any) -> None:
    """Has a region live for good: graphs may run at any time."""
    _kept[key] = region


def enter(key: str) -> None:
    _prepare(key)
    _enter_in_graph(key)


def leave(key: str) -> None:
    _prepare(key)
    leave_in_graph(key)


def _enter_in_graph(key: str) -> None:
    _core.enter_autocast(_kept[key], _kept[key])


def leave_in_graph(key: str) -> None:
    _core.leave_autocast(_kept[key])


def regions_in(module: torch.nn.Module) -> Iterator[Any]:
    """The regions that a traced graph enters, and those of the graphs inside it (torch.cond)."""
    for each in module.modules():
        if isinstance(each, torch.fx.GraphModule):
            yield from (_kept[str(node.args[0])] for node in each.graph.nodes if node.target is _enter_in_graph)


@run_while_traced
def _prepare(key: str) -> None:
    """Has torch.compile bring back the regions that it was in when its trace ends, as it does with torch's own."""
    torch.compiler.allow_in_graph(_enter_in_graph)  # type: ignore[no-untyped-call]
    torch.compiler.allow_in_graph(leave_in_graph)  # type: ignore[no-untyped-call]
    keep(key, _regions[key])
    depth = _core.autocast_depth()

    def bring_back() -> None:
        _core.leave_autocast_to(depth)
        if _core.autocast_depth() < depth:
            _enter_in_graph(key)

    TRACE_END.translator.current_tx().output.add_cleanup_hook(bring_back)
