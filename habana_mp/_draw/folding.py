"""The graph of some outputs, with the modules that lie deeper than the picture goes folded into a node each."""

from __future__ import annotations

from collections import Counter

import torch

from habana_mp._cast import dtype_name
from habana_mp._draw.autograd_graph import Origin, read_graph, shape_text
from habana_mp._draw.module_calls import Call, ModuleCalls, OpCall
from habana_mp._draw.picture import Frame, Node

_READABLE = 80  # nodes: modules are folded, the innermost first, until there are no more


# By op and path of the module: its part of the error of the loss.
Shares = dict[tuple[str, str], float]
Nodes = list[tuple[Node, Frame | None]]
Edges = dict[tuple[int, int], str]  # by the numbers of two nodes, the ops on the way that only change the form


class Graph:
    """The graph of some outputs and the calls of modules that made it, of which pictures of any depth can be made."""

    def __init__(self, outputs: dict[str, torch.Tensor], calls: ModuleCalls, shares: Shares | None = None) -> None:
        self._shares = shares or {}
        self._outputs = outputs
        self._calls = calls
        origins, self._made = read_graph(outputs.values())
        # An input came in by the copy of a leaf, which is ours. Another thread may have given the same number to a cast that is cached.
        self._inputs = {o: calls.inputs[o.born] for o in origins if o.born in calls.inputs and o.op == "clone"}
        ours = {origin.inputs.pop()[0] for origin in self._inputs}
        self._origins = [origin for origin in origins if origin not in ours]
        self._call_of: dict[Origin, Call | None] = {}
        self._op_of: dict[Origin, OpCall] = {}
        self._is_cast: dict[Origin, bool] = {}  # but not one that torch makes inside an op, by Tensor.to
        for origin in self._origins:
            self._call_of[origin] = self._made_in(origin)
            op = self._calls.op_of_node(origin.born) if origin.leaf is None else None
            if op is not None and op.innermost:
                self._op_of[origin] = op
            self._is_cast[origin] = origin.cast_from is not None and (op is None or origin.op != "to_copy")

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
        members: dict[Origin | Call | OpCall, list[Origin]] = {}
        shown: dict[Origin, Origin | Call | OpCall] = {}
        for origin, call in self._call_of.items():
            folded = call is not None and call.depth >= depth
            shown[origin] = call.up_to(depth) if call and folded else self._op_of.get(origin, origin)
            members.setdefault(shown[origin], []).append(origin)
        frames: dict[Call, Frame] = {}
        nodes: Nodes = []
        number = {what: i for i, what in enumerate(members)}
        for what, inside in members.items():
            call = self._call_of[inside[0]]
            if isinstance(what, Call):
                node, call = self._module_node(what, inside), what.parent
            elif isinstance(what, OpCall) and len(inside) > 1:
                node = self._op_node(what.op, what, inside)
            else:
                node = self._node(inside[0])
            nodes.append((node, _frame(call, frames)))
        # An edge for each tensor between two nodes; what passes between folded modules is one.
        edges: dict[tuple[int, int], str] = {}
        for origin in self._origins:
            for source, _, forms in origin.inputs:
                ends = number[shown[source]], number[shown[origin]]
                if ends[0] != ends[1]:
                    edges.setdefault(ends, ", ".join(forms))
        for (title, tensor), (origin, _, forms) in zip(self._outputs.items(), self._made, strict=True):
            edges[number[shown[origin]], len(nodes)] = ", ".join(forms)
            nodes.append((Node("output", title, dtype_name(tensor.dtype), shape_text(tensor)), None))
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
        if self._is_cast[origin]:
            return Node("cast", f"{origin.cast_from} → {origin.dtypes[0]}", *result, origin.name, casts=1)
        op = self._op_of.get(origin)
        linear = origin.op in {"mm", "addmm"} and call is not None and isinstance(call.module, torch.nn.Linear)
        text = op.op if op and origin.in_8_bits else "linear" if linear else origin.op
        return self._op_node(text, op, [origin])

    def _op_node(self, text: str, op: OpCall | None, inside: list[Origin]) -> Node:
        inside = sorted(inside, key=lambda origin: origin.born)
        last = inside[-1]
        call = self._call_of[last]
        names = ", ".join(origin.name for origin in inside)
        path = call.path if call else ""
        # The row of a report that it is counted in.
        named, rule = (text, "") if op is None else (op.op, op.rule)
        share = self._shares.get((named, path), 0.0)
        return Node("op", text, last.dtypes[0], last.shapes[0], path, names, rule=rule, share=share)

    def _module_node(self, call: Call, inside: list[Origin]) -> Node:
        casts = [origin for origin in inside if self._is_cast[origin] and origin not in self._op_of]
        # Of what is made in one call of an op, the last stands for it.
        ops: dict[Origin | OpCall, Origin] = {}
        for origin in sorted(inside, key=lambda origin: origin.born):
            if origin.leaf is None and not self._is_cast[origin]:
                ops[self._op_of.get(origin, origin)] = origin
        last = max(ops.values() or inside, key=lambda origin: origin.born)
        inner = f"{call.path}." if call.path else ""  # of the model itself, all
        precisions = Counter(origin.dtypes[0] for origin in ops.values()).most_common()
        return Node(
            "module",
            _title(call),
            last.dtypes[0],
            last.shapes[0],
            call.path,
            casts=len(casts),
            ops=tuple(precisions),
            share=sum(share for (_, path), share in self._shares.items() if f"{path}.".startswith(inner)),
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
