"""The autograd graph of some outputs as plain values, in the direction of the forward pass.

Reads grad_fn and what hangs on it, and keeps nothing of it but the leaves. Knows nothing of modules or of pictures.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from habana_mp._cast import dtype_name
from habana_mp._torch_private import DRAW

# The same numbers in another form. They would be half of the graph of an attention block, so an edge passes through them.
_FORMS = frozenset("alias expand permute reshape_alias squeeze t transpose unsafe_view unsqueeze view".split())
# Where the name of the node is not that of the call.
_WORDS = {
    "copy_slices": "write to a slice",
    "max_pool2d_with_indices": "max_pool2d",
    "max_pool3d_with_indices": "max_pool3d",
    "mkldnn_rnn_layer": "lstm",
    "native_batch_norm": "batch_norm",
    "native_dropout": "dropout",
    "native_group_norm": "group_norm",
    "native_layer_norm": "layer_norm",
    "safe_softmax": "softmax",
}
_PRODUCTS = frozenset(["linear", "mm", "bmm"])  # torch makes matrices of their inputs, and a view of the result
_OURS = "<habana_mp::"  # in the names of nodes of products in 8 bits (src/call/int8_gradients.cpp)
_CASTS = frozenset(["copy", "to_copy"])  # those of this package and of Tensor.copy_, those of Tensor.to

# What made a tensor, which of its results that was, and the ops on the way from there that only change the form.
Source: TypeAlias = "tuple[Origin, int, tuple[str, ...]]"


@dataclass(eq=False)
class Origin:
    """What made a tensor: a call of an op, or a leaf of the graph.

    ``dtypes`` and ``shapes`` are those of its results. ``inputs`` are where the tensors came from that it took, but for those
    that need no gradient. ``born`` is torch's number, which grows with every node that a thread makes.
    """

    name: str
    op: str
    dtypes: tuple[str, ...]
    shapes: tuple[str, ...]
    born: int
    leaf: torch.Tensor | None
    inputs: list[Source] = field(default_factory=list)

    @property
    def in_8_bits(self) -> bool:
        return _OURS in self.name

    @property
    def cast_from(self) -> str | None:
        """The dtype that it casts from, where a cast is all that it does."""
        if self.op not in _CASTS or len(self.inputs) != 1:
            return None
        source, number, _ = self.inputs[0]
        return source.dtypes[number] if source.dtypes[number] != self.dtypes[0] else None


def read_graph(tensors: Iterable[torch.Tensor]) -> tuple[list[Origin], list[Source]]:
    """All that the tensors came from, each after its inputs; and what each tensor came from itself."""
    ends = [torch.autograd.graph.get_gradient_edge(tensor) for tensor in tensors]
    # Holds the nodes: the Python object of one that nobody holds goes, and its identity with it.
    origins: dict[Any, Origin] = {}
    for end in ends:
        _read(end.node, origins)
    views: dict[Any, list[Origin]] = {}  # of products of matrices
    for node, origin in origins.items():
        for source, number in node.next_functions:
            if source is not None:
                origin.inputs.append(_behind_forms(source, number, origins))
                if origins[source].op in _PRODUCTS:
                    views.setdefault(source, []).append(origin)
    for node, by in views.items():
        if len(by) == 1 and by[0].op in {"view", "unsafe_view"}:
            origins[node].shapes = by[0].shapes
    made = [_behind_forms(end.node, end.output_nr, origins) for end in ends]
    return [origin for node, origin in origins.items() if not _is_form(node, origin)], made


def _read(end: Any, origins: dict[Any, Origin]) -> None:
    """Depth first, and without recursion: a graph may be deeper than Python's stack."""
    stack = [(end, False)]
    while stack:
        node, inputs_done = stack.pop()
        if node in origins:
            continue
        if inputs_done:
            origins[node] = _origin(node)
        else:
            stack.append((node, True))
            stack += [(source, False) for source, _ in reversed(node.next_functions) if source is not None]


def _origin(node: Any) -> Origin:
    results = DRAW.of(node, "results")  # which its backward takes
    return Origin(
        name=node.name(),
        op=_op(node),
        dtypes=tuple("none" if result is None else dtype_name(result.dtype) for result in results),
        shapes=tuple("" if result is None else shape_text(result) for result in results),
        born=DRAW.of(node, "born")(),
        leaf=getattr(node, "variable", None),
    )


def _behind_forms(node: Any, number: int, origins: dict[Any, Origin]) -> Source:
    passed: list[str] = []
    while _is_form(node, origins[node]):
        passed.append(origins[node].op)
        node, number = node.next_functions[0]
    return origins[node], number, tuple(reversed(passed))


def _is_form(node: Any, origin: Origin) -> bool:
    return origin.op in _FORMS and [source is not None for source, _ in node.next_functions] == [True]


def _op(node: Any) -> str:
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        return type(node).__name__.removesuffix("Backward")  # a torch.autograd.Function, by its class
    inputs = [source.name() if source is not None else "" for source, _ in node.next_functions]
    camel = re.sub(r"Backwards?\d*$", "", node.name().rpartition("::")[2])
    if camel == "Addmm" and inputs[2:] == ["TBackward0"]:
        return "linear"
    if camel == "Convolution":
        form = "conv_transpose" if DRAW.of(node, "transposed") else "conv"
        return f"{form}{len(DRAW.of(node, 'results')[0].shape) - 2}d"
    if camel.startswith("ScaledDotProduct"):
        return "scaled_dot_product_attention"
    if _OURS in node.name():
        return f"{camel.removesuffix('>').lower()} in 8 bits"
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", re.sub(r"(?<=\d)D", "d", camel)).lower()
    return _WORDS.get(snake, snake)


def shape_text(tensor: Any) -> str:
    try:
        return "×".join(map(str, tensor.shape)) or "scalar"
    except RuntimeError:  # a nested tensor of the older kind has none
        return "nested"
