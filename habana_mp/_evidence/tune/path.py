"""The order in which parts go to float32, from the fastest choice to float32 throughout.

For a weight of errors against costs the best choice of dtypes is a minimum cut of a graph: each part has an edge of what its low dtype saves, one of
its weighted squared error, and one to each neighbour of what casts between them cost. With a growing weight these choices only grow,
so that they are steps of one path (parametric minimum cuts: Gallo, Grigoriadis, Tarjan 1989).
"""

from __future__ import annotations

import math

from habana_mp._evidence.tune.costs import Costs
from habana_mp._evidence.tune.parts import Parts

_UNITS = 10**9  # the capacities of a graph
_WEIGHTS = 32  # that are tried between the first part that moves and the last


def path(parts: Parts, costs: Costs) -> list[int]:
    """The parts in the order in which they go to float32.

    First those that lose numbers, and those that no gradient comes to: whether they may be low, runs have to show. Then those whose float32 costs
    nothing, then the others, so that the error falls as fast as it can for its costs.
    """
    first = [i for i, part in enumerate(parts) if part.hidden or math.isinf(part.error)]
    order = sorted(first, key=lambda i: -parts[i].error)
    for weight in (0.0, *_weights(parts, costs)):
        _extend(order, parts, costs, _cut(parts, costs, weight, set(first)))
    _extend(order, parts, costs, {*range(len(parts))})
    return order


def free(parts: Parts, costs: Costs) -> set[int]:
    """The parts that take less time in float32, casts at their borders included."""
    return _cut(parts, costs, 0.0, set())


def _weights(parts: Parts, costs: Costs) -> list[float]:
    """Of squared errors, in the unit of the costs: from one at which nothing is worth it to one at which all is."""
    squares = [part.error**2 for part in parts if part.error and math.isfinite(part.error)]
    sizes = [abs(each) for each in (*costs.saved, *costs.borders.values()) if each]
    if not squares or not sizes:
        return []
    low, high = math.log(min(sizes) / max(squares)), math.log(2 * sum(sizes) / min(squares))
    return [math.exp(low + (high - low) * i / (_WEIGHTS - 1)) for i in range(_WEIGHTS)]


def _cut(parts: Parts, costs: Costs, weight: float, fixed: set[int]) -> set[int]:
    """The parts in float32 of the choice with the least costs and weighted squared errors."""
    most = 2 * (sum(map(abs, costs.saved)) + sum(costs.borders.values())) or 1.0

    def whole(size: float) -> int:  # cuts of floats need not end
        return round(min(size, most) / most * _UNITS)

    import networkx as nx  # takes as long to import as the package itself

    graph = nx.DiGraph()
    graph.add_nodes_from(("low", "float32"))
    for i, part in enumerate(parts):
        # An edge from "float32" is cut where the part is low, one to "low" where it is not.
        square = math.inf if i in fixed else weight * part.error**2
        graph.add_edge("float32", i, capacity=whole(square + max(0.0, -costs.saved[i])))
        graph.add_edge(i, "low", capacity=whole(max(0.0, costs.saved[i])))
    for (a, b), cost in costs.borders.items():
        graph.add_edge(a, b, capacity=whole(cost))
        graph.add_edge(b, a, capacity=whole(cost))
    _, (side, _) = nx.minimum_cut(graph, "float32", "low")
    return {each for each in side if isinstance(each, int)}


def _extend(order: list[int], parts: Parts, costs: Costs, chosen: set[int]) -> None:
    """By parts that move together, each next one that which takes most error away for its costs."""
    now = {*order}
    while waiting := sorted(chosen - now):
        order.append(min(waiting, key=lambda i: _price(costs.moved(now, i), parts[i].error ** 2)))
        now.add(order[-1])


def _price(cost: float, square: float) -> tuple[bool, float]:
    """What is free comes first, the most useful of it before others."""
    if cost <= 0:
        return False, -square
    return True, cost / square if square else math.inf
