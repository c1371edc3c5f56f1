"""Random sums of outputs, in place of a loss: their gradients say which op makes the error of the outputs.

A sum of all numbers, each times a random one, changes by as much as the outputs do, on average over such sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

import habana_mp._core as _core
from habana_mp._torch_private import DRAW

_REENTRANT = "CheckpointFunctionBackward"


def project(
    outputs: Any,
    count: int,
    seed: int,
    begin: Callable[[], None],
    end: Callable[[], None],
    *,
    reach: Callable[[list[torch.Tensor], int], None] = lambda *_: None,
) -> float | None:
    """Run ``count`` backward passes, each between ``begin`` and ``end``. No gradient is added to any tensor. ``reach`` is called before the first pass,
    with the tensors that they begin at and ``count``.

    Returns what the squares of the sums come to on average, all together; None where no floating tensor among the outputs requires a gradient.
    """
    tensors: list[torch.Tensor] = []
    DRAW.map_tensors(torch.Tensor, tensors.append, outputs)
    tensors = [tensor for tensor in tensors if tensor.requires_grad and tensor.is_floating_point()]
    leaves = [*_leaves(tensors)]
    if not leaves:
        return None
    reach(tensors, count)
    random = torch.Generator().manual_seed(seed)
    for _ in range(count):
        begin()
        try:
            sums = [torch.randn(tensor.shape, generator=random, device="cpu").to(tensor) for tensor in tensors]
            for tensor, gradient in zip(tensors, sums, strict=True):
                _core.begin_backward_at(tensor, gradient)
            torch.autograd.grad(tensors, leaves, sums, retain_graph=True, allow_unused=True)
        finally:
            end()
    return count * sum(_core.sum_of_squares(tensor) for tensor in tensors)


def _leaves(tensors: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """What requires a gradient and is made of nothing, once each."""
    yield from {id(tensor): tensor for tensor in tensors if tensor.grad_fn is None}.values()
    waiting = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if node.name() == _REENTRANT:
            raise RuntimeError(
                "outputs behind a reentrant checkpoint cannot be projected, as torch runs it in backward() alone: "
                "call torch.utils.checkpoint.checkpoint with use_reentrant=False"
            )
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor) and not node.next_functions:
            yield leaf
        for source, _ in node.next_functions:
            if source is not None and source not in seen:
                seen.add(source)
                waiting.append(source)
