"""What the graphs that Inductor compiles hold: their casts, which ops these are for and by which rule, and how they round.

It is read from the graphs while they are compiled. One that torch takes from its cache on disk is not seen, and neither are the graphs of
another backend.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

import habana_mp._core as _core
from habana_mp._cast import LOW_DTYPES, dtype_name
from habana_mp._torch_private import COMPILED_GRAPHS

EXACT, FUSED = _core.COMPILED  # how a graph rounds
# By their names: the graph holds copies of ops.
_CASTS = {"_to_copy", "convert_element_type"}
_OP = type(torch.ops.aten.mul.Tensor)
_CAST_DTYPES = (*LOW_DTYPES, torch.float32)
# What Inductor leaves to a library, which rounds its result; it fuses all else with what comes before and after.
_LIBRARY = re.compile(
    r"(_?(scaled_|sparse_)?(add|baddb|b)?mm|(_|mkldnn_)?convolution.*|_scaled_dot_product.*|_flash.*|_efficient.*)"
)


class GraphCast(NamedTuple):
    op: str
    backward: bool
    source: str
    target: str
    rule: str


@dataclass
class Graph:
    rounds: str
    casts: Counter[GraphCast] = field(default_factory=Counter)
    unrounded: int = 0  # results in the low dtype that a fused kernel may hold in float32


_graphs: dict[str, Graph] = {}


def known(number: str) -> Graph | None:
    """The graph of this number; None where none was seen."""
    return _graphs.get(number) if _graphs and _forget in COMPILED_GRAPHS.begins else None


def _forget(compilation: Any) -> None:
    """Called by Dynamo as it compiles a graph: after a reset, which ends these calls, it counts anew."""
    if compilation.callback_trigger.name == "DYNAMO":
        _graphs.pop(str(compilation.compile_id), None)


def seen(compile_inner: Callable[..., Any], rounds: str, policies: Sequence[_core.Policy]) -> Callable[..., Any]:
    """The function that compiles the parts of the graph which Dynamo has traced, made to look at them first."""
    if getattr(compile_inner, "habana_mp", False) or not COMPILED_GRAPHS.works:
        return compile_inner
    if _forget not in COMPILED_GRAPHS.begins:
        _graphs.clear()
        COMPILED_GRAPHS.begins.append(_forget)
    graph = _graphs[str(COMPILED_GRAPHS.number())] = Graph(rounds)

    @functools.wraps(compile_inner)
    def look(part: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        _add(graph, part.graph, policies, backward=bool(kwargs.get("is_backward")))
        return compile_inner(part, *args, **kwargs)

    look.habana_mp = True  # type: ignore[attr-defined]
    return look


def _add(graph: Graph, part: torch.fx.Graph, policies: Sequence[_core.Policy], *, backward: bool) -> None:
    for node in part.nodes:
        for op, source, target in _casts_of(node):
            rule = "" if backward else _rule(op, policies)
            graph.casts[GraphCast(_name(op), backward, dtype_name(source), dtype_name(target), rule)] += 1
        graph.unrounded += graph.rounds == FUSED and _may_stay_wide(node)


def _casts_of(node: torch.fx.Node) -> Iterator[tuple[Any, torch.dtype, torch.dtype]]:
    """The casts that a node of a graph makes, each with the op that it is for."""
    if node.op != "call_function" or not isinstance(node.target, _OP):
        return
    target = _dtype(node)
    if node.target.namespace == "habana_mp":  # of weights, inside the op
        wanted = node.kwargs.get("weight_dtype")
        if isinstance(wanted, torch.dtype):
            given = [_dtype(each) for each in node.all_input_nodes]
            yield from ((node.target, each, wanted) for each in given if each == torch.float32)
    elif _name(_origin(node)) in _CASTS and node.all_input_nodes:  # else a constant, cast when the graph was made
        source = _dtype(node.all_input_nodes[0])
        if source in _CAST_DTYPES and target in _CAST_DTYPES and source != target:
            yield next((_origin(user) for user in _consumers(node)), None), source, target


def _origin(node: torch.fx.Node) -> Any:
    """The op that a node is a part of, since ops are made of smaller ones here."""
    return node.meta.get("original_aten") or node.target


def _consumers(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """Those that compute with the result, through views."""
    for user in node.users:
        if user.op == "call_function" and getattr(user.target, "is_view", False):
            yield from _consumers(user)
        elif user.op == "call_function":
            yield user


def _may_stay_wide(node: torch.fx.Node) -> bool:
    if node.op != "call_function" or getattr(node.target, "is_view", False) or _dtype(node) not in LOW_DTYPES:
        return False
    return not _is_of_library(node) and any(not _is_of_library(user) for user in _consumers(node))


def _is_of_library(node: torch.fx.Node) -> bool:
    return _LIBRARY.fullmatch(_name(node.target)) is not None or getattr(node.target, "namespace", "") == "habana_mp"


def _dtype(node: torch.fx.Node) -> torch.dtype | None:
    value = node.meta.get("val")
    return value.dtype if isinstance(value, torch.Tensor) else None


def _name(op: Any) -> str:
    """The name of an overload without that of the overload; "" for what is no op: a result of the graph."""
    return _overload(op).partition(".")[0]


def _overload(op: Any) -> str:
    return str(op).partition(".")[2].removesuffix(".default") if isinstance(op, _OP) else ""


def _rule(op: Any, policies: Sequence[_core.Policy]) -> str:
    """Of the op, or of the one that it is the inner part of: _softmax of softmax."""
    for policy in policies if op is not None else ():
        for name in (_overload(op), _name(op).removeprefix("_")):
            found = policy.resolve_overload(name)
            if found.entry is not None:
                return policy.rule_text(found.entry)
    return ""
