"""Graphs captured on CUDA, or on any accelerator that torch captures on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch


def new_graph(device: str) -> tuple[Any, AbstractContextManager[Any]]:
    """The graph, and the context that records it."""
    if device == "cuda":
        graph = torch.cuda.CUDAGraph()
        return graph, torch.cuda.graph(graph)
    graph = torch.accelerator.Graph()
    return graph, graph


def capture(device: str, call: Callable[[], Any], warm_ups: int = 3) -> tuple[Any, Any]:
    """The graph, and what the call has returned in it. Both run on a stream of their own."""
    side = torch.Stream(device)
    side.wait_stream(torch.accelerator.current_stream())
    with side:
        for _ in range(warm_ups):
            call()
        torch.accelerator.synchronize()
        graph, recording = new_graph(device)
        with recording:
            found = call()
    torch.accelerator.current_stream().wait_stream(side)
    return graph, found
