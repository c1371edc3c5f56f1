"""A graph of ops and casts as a picture by Graphviz. Knows what it looks like, and nothing of autograd.

The ground is white for light pages and dark ones: every precision has one colour, and text one contrast.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from habana_mp._show.units import printable
from habana_mp._show.units import share as percent
from habana_mp._show.writing import written

if TYPE_CHECKING:
    import graphviz

# (fill, border) of a precision: the colours of the page of a report (templates/report.css), and the same on white, lighter.
_COLOURS = {
    "bfloat16": ("#cce3f0", "#0072b2"),
    "float16": ("#ddf0fb", "#56b4e9"),
    "float32": ("#fae7c2", "#e69f00"),
    "float64": ("#f8cccc", "#b53a3a"),
    "other": ("#e4e4e7", "#71717a"),
}
# Of errors, as the page has them: for up to a fifth of all error, two fifths ...
_HEAT = ("#fbf0f5", "#f2d9e4", "#e9c1d3", "#e0a9c3", "#d68bae")
_HEAT_BORDER = "#b4366e"
_FONT = "Helvetica,Arial,sans-serif"
_FRAME = {
    "color": "#a1a1aa",
    "fontcolor": "#3f3f46",
    "fontsize": "10",
    "labeljust": "l",
    "labelloc": "t",
    "margin": "8",
    "style": "rounded",
}
_STYLES = {
    "op": {"shape": "box", "style": "rounded,filled", "margin": "0.12,0.06"},
    "module": {"shape": "box", "style": "striped", "peripheries": "2", "margin": "0.16,0.08"},
    "cast": {"shape": "box", "style": "striped", "margin": "0.08,0.02", "height": "0.2", "penwidth": "1.6"},
    "parameter": {"shape": "box", "style": "filled", "margin": "0.08,0.04", "penwidth": "0.7"},
    "input": {"shape": "oval", "style": "filled", "margin": "0.02,0.02"},
    "output": {"shape": "oval", "style": "filled", "margin": "0.02,0.02"},
}


@dataclass(frozen=True)
class Node:
    """One node of a ``Drawing``.

    ``kind`` is "op", "cast", "parameter", "input", "output" or "module", a folded one. ``dtype`` and ``shape`` are those of its
    result, ``module`` is the path of the module that it belongs to, ``detail`` torch's name of the node, or "frozen". ``casts`` and,
    of a folded module, ``ops`` are how many casts and ops of which precision are in it. ``rule`` is the line of a list that decided an op; of a
    list for 8 bits it begins with "lower" where the op ran so. ``share`` is its part of the error of the loss, where a report was given.

    Example:
        >>> [node.text for node in hmp.draw(torch.nn.Linear(2, 2), torch.ones(1, 2)).nodes if node.kind == "op"]
        ['linear']
    """

    kind: str
    text: str
    dtype: str
    shape: str
    module: str = ""
    detail: str = ""
    casts: int = 0
    ops: tuple[tuple[str, int], ...] = ()
    rule: str = ""
    share: float = 0.0


@dataclass(eq=False)
class Frame:
    """Round the nodes of one call of a module."""

    title: str
    parent: Frame | None


@dataclass(frozen=True, repr=False)
class Drawing:
    """The result of ``draw``. Jupyter shows it as SVG, ``save`` writes it to a file. ``source`` is the graph in Graphviz's language.

    Example:
        >>> drawing = hmp.draw(model, x)
        >>> drawing.save("model.svg")
    """

    nodes: tuple[Node, ...]
    source: str

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture to a file whose name ends in .svg or .png.

        Raises:
            ValueError: another ending.
            RuntimeError: Graphviz's program dot is not there.
            OSError: the file cannot be written.
        """
        form = Path(path).suffix.lower().removeprefix(".")
        if form not in {"svg", "png"}:
            raise ValueError(f"{os.fspath(path)!r}: the name of a drawing must end in .svg or .png")
        written(self._rendered(form), path)

    def __repr__(self) -> str:
        casts = sum(node.casts for node in self.nodes)
        return f"<Drawing of {len(self.nodes)} nodes with {casts} casts: save it, or show it in Jupyter>"

    def _repr_svg_(self) -> str:
        return self._rendered("svg").decode()

    def _rendered(self, form: str) -> bytes:
        import graphviz

        # Graphviz takes 72 dots for an inch, at which small text cannot be read; SVG has no dots.
        source = self.source.replace("{", "{\n\tgraph [dpi=144]", 1) if form == "png" else self.source
        try:
            rendered: bytes = graphviz.Source(source).pipe(format=form)
        except graphviz.ExecutableNotFound:
            raise RuntimeError(
                "drawing needs Graphviz's program dot, which is not on PATH: install it by apt-get install graphviz, "
                "brew install graphviz or conda install graphviz"
            ) from None
        return rendered


def _colours(dtype: str) -> tuple[str, str]:
    return _COLOURS.get(dtype, _COLOURS["other"])


def _shares(ops: Sequence[tuple[str, int]]) -> str:
    """Stripes, each as wide as its share; the last takes what is left, since Graphviz warns of a sum above 1."""
    total = sum(many for _, many in ops)
    stripes = [f"{_colours(dtype)[0]};{max(many / total, 0.01):.3f}" for dtype, many in ops]
    return ":".join([*stripes[:-1], *(stripe.partition(";")[0] for stripe in stripes[-1:])])


def _text(text: str) -> str:
    """For labels and notes, in both of which Graphviz reads entities, and gives a backslash a meaning of its own."""
    from html import escape

    return "&#10;".join(escape(printable(line)) for line in text.split("\n")).replace("\\", "&#92;")


def _small(text: str) -> str:
    return f'<FONT POINT-SIZE="9">{_text(text)}</FONT>'


def _legend(nodes: Sequence[Node]) -> str:
    named = {dtype for node in nodes for dtype in (node.dtype, *dict(node.ops))}
    dtypes = {dtype if dtype in _COLOURS else "other" for dtype in named}
    cells = "".join(
        f'<TD BGCOLOR="{fill}" COLOR="{border}" BORDER="1">{_small(dtype)}</TD>'
        for dtype, (fill, border) in _COLOURS.items()
        if dtype in dtypes
    )
    return f'<<TABLE BORDER="0" CELLSPACING="6" CELLPADDING="3"><TR>{cells}</TR></TABLE>>'


def picture(nodes: Sequence[tuple[Node, Frame | None]], edges: Mapping[tuple[int, int], str]) -> Drawing:
    """The nodes in their frames, data going down; ``edges`` are by the numbers of two nodes, each with a note."""
    import graphviz

    shown = [node for node, _ in nodes]
    graph = graphviz.Digraph(
        "autograd graph",
        graph_attr={
            "bgcolor": "white",
            "fontname": _FONT,
            "fontsize": "11",
            "label": _legend(shown),
            "labelloc": "t",
            "nodesep": "0.16",
            "ranksep": "0.28",
            "pad": "0.2",
        },
        node_attr={"fontname": _FONT, "fontsize": "11"},
        edge_attr={"color": "#71717a", "arrowsize": "0.6"},
    )
    contents: dict[Frame | None, list[int | Frame]] = {}
    for number, (_, frame) in enumerate(nodes):
        contents.setdefault(frame, []).append(number)
        while frame is not None and frame not in contents.setdefault(frame.parent, []):
            contents[frame.parent].append(frame)
            frame = frame.parent
    _fill(graph, None, contents, shown, count())
    for (source, target), note in edges.items():
        graph.edge(str(source), str(target), edgetooltip=_text(note or " "))
    return Drawing(tuple(shown), graph.source)


def _fill(
    graph: graphviz.Digraph,
    frame: Frame | None,
    contents: Mapping[Frame | None, list[int | Frame]],
    nodes: Sequence[Node],
    numbers: Iterator[int],
) -> None:
    for what in contents.get(frame, []):
        if isinstance(what, int):
            _add(graph, what, nodes[what])
        elif isinstance(only := contents[what][0], int) and len(contents[what]) == 1:
            _add(graph, only, nodes[only], what.title)
        else:
            # Graphviz draws a frame round a subgraph whose name begins so.
            with graph.subgraph(name=f"cluster_{next(numbers)}") as inner:
                inner.attr(label=f"<<B>{_text(what.title)}</B>>", **_FRAME)
                _fill(inner, what, contents, nodes, numbers)


def _add(graph: graphviz.Digraph, number: int, node: Node, title: str = "") -> None:
    """``title`` is that of a frame that would have this node alone in it."""
    fill, border = _colours(node.dtype)
    result = f"{node.dtype} {node.shape}"
    more = [title]
    if node.kind == "cast":
        fill = f"{_colours(node.text.partition(' ')[0])[0]}:{fill}"
        label = f"<{_small(node.text)}>"
    else:
        if node.kind == "module":
            ops = ", ".join(f"{many} {dtype}" for dtype, many in node.ops) or "none"
            more = [f"ops: {ops}; casts: {node.casts}"]
            fill = _shares(node.ops) or fill
        elif node.kind == "op":
            more.append(_short_rule(node.rule))
        elif node.kind == "parameter":
            more.append(node.detail)
        if node.share > 0:
            more.append(f"{percent(node.share, 1.0)} of the error")
            fill, border = _HEAT[min(4, math.ceil(node.share * 5) - 1)], _HEAT_BORDER
        lines = [_text(node.text), *map(_small, filter(None, more)), _small(result)]
        label = f"<{'<BR/>'.join(lines)}>"
    tooltip = "\n".join(text for text in (node.module, node.detail, node.rule, result) if text)
    style = _STYLES[node.kind]
    if node.kind == "module" and node.share > 0:
        style = {**style, "style": "filled"}  # the stripes are of precisions
    graph.node(str(number), label, fillcolor=fill, color=border, tooltip=_text(tooltip), **style)


def _short_rule(rule: str) -> str:
    """``lower, lower.txt:22`` of ``lower: linear, lists/hmp/lower.txt:22``: the op has its name already."""
    action, _, where = rule.partition(": ")
    place = where.partition(", ")[2].rpartition("/")[2]
    return f"{action}, {place}" if place else action
