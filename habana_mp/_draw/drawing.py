"""``draw``: the autograd graph of an output, or of a call of a model, with its casts and precisions.

folding.py decides what the picture shows, autograd_graph.py reads the graph, module_calls.py runs the model, picture.py draws. They
are imported by the first call: few programs draw, and all import the package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from habana_mp._report.cast_report import CastReport
from habana_mp._show.short import brief
from habana_mp._show.units import whole
from habana_mp._torch_private import DRAW

if TYPE_CHECKING:
    from habana_mp._draw.picture import Drawing

_MOST = 1000  # what Graphviz lays out in seconds


def draw(
    what: Any, /, *args: Any, depth: int | None = None, report: CastReport | None = None, **kwargs: Any
) -> Drawing:
    """Draw the autograd graph of outputs, or of a call of a model. Colours show the precision of the results of its ops and casts.

    Each op has the list and the line that decided its precision.

    Args:
        what: a tensor with a graph, or tuples, lists and dicts of such tensors; or a ``torch.nn.Module``. ``draw`` calls the module in
            its current mode, under the conversion or the regions that are on, and draws a frame around each call of a module inside it.
        *args: the arguments of the module. ``draw`` passes copies that require gradients, and its frozen weights require them while it
            runs, so that the graph has all casts; but not weights that may run in 8 bits, since one that requires a gradient does not.
        **kwargs: the keyword arguments of the module.
        depth: how many levels of modules are open. A deeper module is one node, which shows how many ops and casts it has. 0 makes the
            model itself one node. The default opens as many levels as a picture of 80 nodes has room for.
        report: a report with ``values`` of a step of the same model. Colours then show the share of the error of ops and modules.

    Returns:
        A ``Drawing``. Jupyter shows it, ``save`` writes SVG or PNG, and ``nodes`` has its nodes.

    Raises:
        TypeError: ``what`` is neither a module nor has tensors; arguments, ``depth`` or ``report`` are given without a module;
            ``report`` is not a report.
        ValueError: no output has a graph, as under ``torch.no_grad``; the picture has more than 1,000 nodes; or ``depth`` is no number from 0 on.
        RuntimeError: the report has no ``values``, or its shares are not known.

    Example:
        >>> hmp.draw(model, x).save("model.svg")

    See Also:
        explain
    """
    from habana_mp._draw.folding import Graph
    from habana_mp._draw.module_calls import ModuleCalls, run
    from habana_mp._draw.picture import picture

    if depth is not None and ((whole(depth) or 0) < 0 or whole(depth) is None):
        raise ValueError(f"depth must be a number of levels of modules, 0 or more, not {brief(depth)}")
    if report is not None and not isinstance(report, CastReport):
        raise TypeError(f"report must be an hmp.CastReport with values, not {brief(report)}")
    DRAW.need()
    if isinstance(what, torch.nn.Module):
        calls = run(what, args, kwargs)
        outputs = _outputs(calls.output, f"what {type(what).__name__} returned")
    elif args or kwargs or depth is not None or report is not None:
        raise TypeError(f"arguments, depth and report need a torch.nn.Module, not a {type(what).__name__}")
    else:
        calls = ModuleCalls()
        outputs = _outputs(what, "what draw was given")
    graph = Graph(outputs, calls, {} if report is None else report.error_shares())
    nodes, edges = graph.readable() if depth is None else graph.folded(depth)
    if len(nodes) > _MOST:
        way = "Use a smaller depth" if calls.calls else "Use hmp.draw(model, x), which folds the modules of a model"
        raise ValueError(f"the picture would have {len(nodes):,} nodes, and at most {_MOST:,} are possible. {way}")
    return picture(nodes, edges)


def _outputs(found: Any, what: str) -> dict[str, torch.Tensor]:
    """The tensors that have a graph, by their names."""
    tensors = [(path, leaf) for path, leaf in DRAW.leaves(found)[0] if isinstance(leaf, torch.Tensor)]
    if not tensors:
        raise TypeError(
            f"draw takes a torch.nn.Module, or tensors in tuples, lists and dicts; {what} is a {type(found).__name__} without a tensor"
        )
    named = {f"output{DRAW.path_text(path)}": tensor for path, tensor in tensors if tensor.requires_grad}
    if not named:
        raise ValueError(
            f"no tensor in {what} has a graph: it was made under torch.no_grad or torch.inference_mode, was detached, or "
            "nothing that it came from requires a gradient, such as integers and weights in 8 bits"
        )
    return named
