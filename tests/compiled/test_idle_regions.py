"""A region that switches autocast off where it is off is no node of a graph (transformers#42747)."""

from __future__ import annotations

import pytest
import torch

from habana_mp import hmp

A = hmp.Policy.from_ops(lower=["mm"], name="a")
X = torch.ones(2, 2)


def graph_of(function) -> tuple[list[str], torch.dtype]:
    names: list[str] = []

    def backend(graph, inputs):
        names.extend(node.target.__name__ for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    torch._dynamo.reset()
    result = torch.compile(function, backend=backend, fullgraph=True)(X)
    assert not torch._C._is_any_autocast_enabled()
    return names, result.dtype


def off(x):
    with hmp.autocast("cpu", enabled=False):
        return torch.mm(x, x)


def off_twice(x):
    region = hmp.autocast("cpu", enabled=False)
    with region, region:
        return torch.mm(x, x)


def decorated(x):
    return hmp.autocast("cpu", enabled=False)(torch.neg)(x)


@pytest.mark.parametrize("function", [off, off_twice, decorated])
def test_no_node_where_autocast_is_off(function) -> None:
    names, dtype = graph_of(function)
    assert (len(names), dtype) == (1, torch.float32)


def test_a_function_is_decorated_inside_of_compiled_code() -> None:
    """From torch 2.15 on Dynamo stopped at torch's decorator."""

    def without_casts(x):
        return hmp.disable_casts()(torch.neg)(x)

    names, dtype = graph_of(without_casts)
    assert (names[1], dtype) == ("neg", torch.float32)


def test_nodes_where_it_is_on() -> None:
    def inside(x):
        with hmp.autocast("cpu", policy=A):
            return off_twice(x)

    names, dtype = graph_of(inside)
    assert (len(names), dtype) == (5, torch.float32)  # the second of the two changes nothing


def test_a_region_outside_is_guarded_on() -> None:
    compiled = torch.compile(off, backend="eager", fullgraph=True)
    for _ in range(2):
        assert compiled(X).dtype == torch.float32
        with hmp.autocast("cpu", policy=A):
            assert compiled(X).dtype == torch.float32
        with torch.autocast("cpu"):
            assert compiled(X).dtype == torch.float32


def test_a_region_inside_of_one_that_does_nothing() -> None:
    def function(x):
        with hmp.autocast("cpu", enabled=False), hmp.autocast("cpu", policy=A):
            return torch.mm(x, x)

    names, dtype = graph_of(function)
    assert (len(names), dtype) == (3, torch.bfloat16)
