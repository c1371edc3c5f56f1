"""Higher-order ops run their functions once more in the backward pass: there they are cast as in the forward pass (D55)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

import pytest
import torch
from drawn_models import converted
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.while_loop import while_loop

from habana_mp import hmp

FRONT_ENDS: dict[str, Callable[[], AbstractContextManager]] = {
    "convert": lambda: converted(policy="torch-cpu"),
    "autocast": lambda: hmp.autocast("cpu", policy="torch-cpu"),
}


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.mm(x, w).float() * 0.5


def row(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return product(x.unsqueeze(0), w).squeeze(0)


part = torch.compiler.nested_compile_region(product)

# The op, and what it computes.
OPS: dict[str, tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]] = {
    "cond": (lambda x, w: torch.cond(x[0, 0] < 9, product, lambda x, w: product(x, w) * 2, (x, w)), product),
    "map": (lambda x, w: map_rows(row, x, w), lambda x, w: torch.stack([row(each, w) for each in x])),
    "while_loop": (
        lambda x, w: while_loop(
            lambda i, x, w: i < 3, lambda i, x, w: (i + 1, product(x, w), w.clone()), (torch.tensor(0), x, w)
        )[1],
        lambda x, w: product(product(product(x, w), w), w),
    ),
    "nested_compile_region": (lambda x, w: part(part(x, w), w) + part(-x, w), lambda x, w: product(product(x, w), w) + product(-x, w)),
}  # fmt: skip


def numbers(function: Callable[..., torch.Tensor], front_end: str, *, within: bool) -> tuple[torch.Tensor, ...]:
    """The result and the gradients, of a backward pass that begins within the region or behind it."""
    torch.manual_seed(0)
    leaves = [torch.randn(8, 8, requires_grad=True) for _ in range(2)]
    weights = torch.linspace(-1, 1, 8)
    with FRONT_ENDS[front_end]():
        result = function(*leaves)
        if within:
            return result.detach(), *torch.autograd.grad((result * weights).sum(), leaves)
    return result.detach(), *torch.autograd.grad((result * weights).sum(), leaves)


@pytest.mark.parametrize("within", [True, False], ids=["within", "behind"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_functions_that_run_again(front_end: str, op: str, backend: str, within: bool) -> None:
    if op == "nested_compile_region" and backend == "eager":
        pytest.skip("torch raises: it has no backward pass without AOTAutograd")
    function, plain = OPS[op]
    expected = numbers(plain, front_end, within=within)
    found = numbers(torch.compile(function, backend=backend, fullgraph=True), front_end, within=within)
    for a, b in zip(found, expected, strict=True):
        # Sums over rows are in another order; in float32 the gradients would be off by 0.002.
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6 * b.abs().max().item())


@pytest.mark.parametrize("op", ["cond", "nested_compile_region"])
def test_without_a_region_nothing_is_cast(op: str) -> None:
    """Also not what has run in one before."""
    function, plain = OPS[op]
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    leaves = [torch.randn(8, 8, requires_grad=True) for _ in range(2)]
    with hmp.autocast("cpu", policy="torch-cpu"):
        torch.autograd.grad(compiled(*leaves).sum(), leaves)
    expected = torch.autograd.grad(plain(*leaves).sum(), leaves)
    found = torch.autograd.grad(compiled(*leaves).sum(), leaves)
    assert all(map(torch.equal, found, expected))


def test_a_backward_pass_of_another_thread_in_another_region() -> None:
    function, plain = OPS["cond"]
    leaves = [torch.randn(8, 8, requires_grad=True) for _ in range(2)]
    with hmp.autocast("cpu", policy="torch-cpu"):
        expected = torch.autograd.grad(plain(*leaves).sum(), leaves)
        total = torch.compile(function, backend="eager", fullgraph=True)(*leaves).sum()

    def backward() -> tuple[torch.Tensor, ...]:
        with hmp.autocast("cpu", policy="hmp", dtype=torch.float16):
            return torch.autograd.grad(total, leaves)

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(backward).result()
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("policy", [None, "torch-cpu"], ids=["no region", "a region"])
def test_ops_in_branches_keep_their_annotations(policy: str | None) -> None:
    annotated = []

    def annotating(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.fx.traceback.annotate({"branch": 1}):
            return product(x, w)

    def keep(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        parts = [module for module in graph.modules() if isinstance(module, torch.fx.GraphModule)]
        annotated.extend(node.target for part in parts for node in part.graph.nodes if node.meta.get("custom"))
        return make_boxed_func(graph)

    leaves = [torch.randn(8, 8, requires_grad=True) for _ in range(2)]
    with hmp.autocast("cpu", policy=policy) if policy else hmp.autocast("cpu", enabled=False):
        torch.compile(
            lambda x, w: torch.cond(x[0, 0] < 9, annotating, product, (x, w)), backend=aot_autograd(fw_compiler=keep)
        )(*leaves)
    assert torch.ops.aten.mm.default in annotated
