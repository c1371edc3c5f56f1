"""``draw``: the autograd graph of an output, or of a call of a model, with its casts and precisions.

What the picture shows is decided here; autograd_graph.py reads the graph, module_calls.py runs the model, picture.py draws.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.utils._pytree import keystr, tree_flatten_with_path

from habana_mp._draw.autograd_graph import Origin, dtype_text, read_graph, shape_text
from habana_mp._draw.module_calls import Call, ModuleCalls, run
from habana_mp._draw.picture import Drawing, Frame, Node, picture

_READABLE = 80  # nodes: modules are folded, the innermost first, until there are no more
_MOST = 1000  # what Graphviz lays out in seconds


def draw(what: Any, /, *args: Any, depth: int | None = None, **kwargs: Any) -> Drawing:
    """Draw the autograd graph of outputs, or of a call of a model: its ops and casts, coloured by the precision of their results.

    Args:
        what: a tensor that has a graph, or tuples, lists and dicts of such; or a ``torch.nn.Module``, which is called in the mode that
            it is in, under the conversion or the regions that are on. Every call of a module inside it has a frame of its own.
        *args: what the module is called with. It is given copies that need gradients, and its frozen weights need them while it
            runs: so their casts are in the graph too.
        **kwargs: the same.
        depth: how many levels of modules are open. One that is deeper is folded into a node, which shows how many ops and casts it
            has. 0 folds the model itself. By default all that a picture of 80 nodes has room for.

    Returns:
        A ``Drawing``: Jupyter shows it, its ``save`` writes SVG or PNG, ``nodes`` are what is in it.

    Raises:
        TypeError: neither a module nor tensors; arguments or ``depth`` without a module.
        ValueError: no output has a graph, as under ``torch.no_grad``; more than 1,000 nodes.

    >>> hmp.draw(model, x).save("model.svg")

    See Also:
        explain
    """
    if depth is not None and (not isinstance(depth, int) or isinstance(depth, bool) or depth < 0):
        raise ValueError(f"depth is how many levels of modules are open, 0 or more, not {depth!r}")
    if isinstance(what, torch.nn.Module):
        calls = run(what, args, kwargs)
        outputs = _outputs(calls.output, f"what {type(what).__name__} returned")
    elif args or kwargs or depth is not None:
        raise TypeError(f"arguments and depth go with a torch.nn.Module, not with a {type(what).__name__}")
    else:
        calls = ModuleCalls()
        outputs = _outputs(what, "what draw was given")
    graph = _Graph(outputs, calls)
    nodes, edges = graph.readable() if depth is None else graph.folded(depth)
    if len(nodes) > _MOST:
        way = "take a smaller depth" if calls.calls else "hmp.draw(model, x) folds the modules of a model"
        raise ValueError(f"the picture would have {len(nodes):,} nodes, and {_MOST:,} are the most: {way}")
    return picture(nodes, edges)


def _outputs(found: Any, what: str) -> dict[str, torch.Tensor]:
    """The tensors that have a graph, by their names."""
    tensors = [(path, leaf) for path, leaf in tree_flatten_with_path(found)[0] if isinstance(leaf, torch.Tensor)]
    if not tensors:
        raise TypeError(
            f"draw takes a torch.nn.Module, or what has a tensor in it; {what} is of {type(found).__name__} and has none"
        )
    named = {f"output{keystr(path)}": tensor for path, tensor in tensors if tensor.requires_grad}
    if not named:
        raise ValueError(
            f"no tensor in {what} has a graph: it was made under torch.no_grad or torch.inference_mode, was detached, or "
            "came from nothing that needs a gradient"
        )
    return named


Nodes = list[tuple[Node, Frame | None]]
Edges = dict[tuple[int, int], str]  # by the numbers of two nodes, the ops on the way that only change the form


class _Graph:
    """The graph of some outputs and the calls of modules that made it, of which pictures of any depth can be made."""

    def __init__(self, outputs: dict[str, torch.Tensor], calls: ModuleCalls) -> None:
        self._outputs = outputs
        self._calls = calls
        origins, self._made = read_graph(outputs.values())
        # An input came in by the copy of a leaf, which is ours. Another thread may have given the same number to a cast that is cached.
        self._inputs = {o: calls.inputs[o.born] for o in origins if o.born in calls.inputs and o.op == "clone"}
        ours = {origin.inputs.pop()[0] for origin in self._inputs}
        self._origins = [origin for origin in origins if origin not in ours]
        self._call_of: dict[Origin, Call | None] = {}
        for origin in self._origins:
            self._call_of[origin] = self._made_in(origin)

    def _made_in(self, origin: Origin) -> Call | None:
        if origin.leaf is not None:
            path = self._calls.parameters.get(id(origin.leaf))
            return None if path is None else self._calls.of_parameter(path)
        if origin.cast_from and origin.inputs[0][0].leaf is not None:
            # The weight cache may have kept it from another call.
            return self._call_of[origin.inputs[0][0]] or self._calls.of_node(origin.born)
        return self._calls.of_node(origin.born)

    def readable(self) -> tuple[Nodes, Edges]:
        deepest = 1 + max((call.depth for call in self._calls.calls), default=0)
        for depth in range(deepest, 1, -1):
            made = self.folded(depth)
            if len(made[0]) <= _READABLE:
                return made
        return self.folded(1)

    def folded(self, depth: int) -> tuple[Nodes, Edges]:
        members: dict[Origin | Call, list[Origin]] = {}
        shown: dict[Origin, Origin | Call] = {}
        for origin, call in self._call_of.items():
            shown[origin] = call.up_to(depth) if call is not None and call.depth >= depth else origin
            members.setdefault(shown[origin], []).append(origin)
        frames: dict[Call, Frame] = {}
        nodes: Nodes = []
        number: dict[Origin | Call, int] = {}
        for what, inside in members.items():
            number[what] = len(nodes)
            if isinstance(what, Call):
                nodes.append((_module_node(what, inside), _frame(what.parent, frames)))
            else:
                nodes.append((self._node(what), _frame(self._call_of[what], frames)))
        # An edge for each tensor between two nodes; what passes between folded modules is one.
        edges: dict[tuple[int, int], str] = {}
        for origin in self._origins:
            for source, _, forms in origin.inputs:
                ends = number[shown[source]], number[shown[origin]]
                if ends[0] != ends[1]:
                    edges.setdefault(ends, ", ".join(forms))
        for (title, tensor), (origin, _, forms) in zip(self._outputs.items(), self._made, strict=True):
            edges[number[shown[origin]], len(nodes)] = ", ".join(forms)
            nodes.append((Node("output", title, dtype_text(tensor), shape_text(tensor)), None))
        return nodes, edges

    def _node(self, origin: Origin) -> Node:
        call = self._call_of[origin]
        path = call.path if call else ""
        result = origin.dtypes[0], origin.shapes[0], path
        if origin in self._inputs:
            return Node("input", self._inputs[origin], *result)
        if origin.leaf is not None:
            full = self._calls.parameters.get(id(origin.leaf), "")
            kind = "parameter" if full or isinstance(origin.leaf, torch.nn.Parameter) else "input"
            frozen = "frozen" if id(origin.leaf) in self._calls.frozen else ""
            return Node(kind, full.removeprefix(f"{path}.") or kind, *result, frozen)
        if source := origin.cast_from:
            return Node("cast", f"{source} → {origin.dtypes[0]}", *result, origin.name, casts=1)
        linear = origin.op in {"mm", "addmm"} and call is not None and isinstance(call.module, torch.nn.Linear)
        return Node("op", "linear" if linear else origin.op, *result, origin.name)


def _module_node(call: Call, inside: list[Origin]) -> Node:
    casts = [origin for origin in inside if origin.cast_from]
    ops = [origin for origin in inside if origin.leaf is None and not origin.cast_from]
    last = max(ops or inside, key=lambda origin: origin.born)
    precisions = Counter(origin.dtypes[0] for origin in ops).most_common()
    return Node(
        "module",
        _title(call),
        last.dtypes[0],
        last.shapes[0],
        call.path,
        casts=len(casts),
        ops=tuple(precisions),
    )


def _frame(call: Call | None, frames: dict[Call, Frame]) -> Frame | None:
    if call is None:
        return None
    if call not in frames:
        frames[call] = Frame(_title(call), _frame(call.parent, frames))
    return frames[call]


def _title(call: Call) -> str:
    """Such as "layers.0.linear1: Linear", from the frame round it."""
    kind = type(call.module).__name__
    round_it = call.parent.path if call.parent else ""
    path = call.path.removeprefix(f"{round_it}.")
    again = f", call {call.number}" if call.number > 1 else ""
    return f"{path}: {kind}{again}" if path else f"{kind}{again}"
