"""Functions that a higher-order op traces once more in its backward pass: they are cast as in the forward pass.

No region is in force in a backward pass, whose ops run in the dtypes of the forward. torch.cond and its like derive their gradients there from
their functions, and the region that these ran in is entered anew round them.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import fx

import habana_mp._core as _core
from habana_mp._torch_private import BACKWARD_TRACES, NESTED_TRACES


def serve() -> None:
    """Put the patches in place for good."""
    if BACKWARD_TRACES.works and not hasattr(BACKWARD_TRACES.cond.forward, "habana_mp"):
        for op in map(BACKWARD_TRACES.get, BACKWARD_TRACES.paths):
            op.forward = staticmethod(_with_regions(op.forward))
    if NESTED_TRACES.works and not hasattr(NESTED_TRACES.op.forward, "habana_mp"):
        _serve_nested()


def _with_regions(forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def in_regions(ctx: Any, *args: Any) -> Any:
        region = _core.current_autocast()
        if region.policies:
            args = tuple(_inside(region, each) if callable(each) else each for each in args)
        return forward(ctx, *args)

    in_regions.habana_mp = True  # type: ignore[attr-defined]
    return in_regions


def _inside(region: _core.AutocastRegion, function: Callable[..., Any]) -> Callable[..., Any]:
    def inside(*args: Any) -> Any:
        with region:
            if isinstance(function, fx.GraphModule) and fx.traceback.has_preserved_node_meta():
                with fx.traceback.preserve_node_meta():  # as torch runs a function that is one
                    return fx.Interpreter(function).run(*args)
            return function(*args)

    return inside


_NO_REGION = nullcontext()


class _Then(threading.local):
    """The region of the forward pass whose backward pass this thread traces."""

    region: AbstractContextManager[Any] = _NO_REGION


_then = _Then()


def _serve_nested() -> None:
    """For torch.compiler.nested_compile_region, which asks what its function is, and takes none in its place."""
    op, trace = NESTED_TRACES.op, NESTED_TRACES.trace
    of_forward, of_backward = op.forward, op.backward

    @functools.wraps(of_forward)
    def forward(ctx: Any, *args: Any) -> Any:
        ctx.habana_mp_region = _core.current_autocast()
        return of_forward(ctx, *args)

    @functools.wraps(of_backward)
    def backward(ctx: Any, *args: Any) -> Any:
        before, _then.region = _then.region, getattr(ctx, "habana_mp_region", _NO_REGION)
        try:
            return of_backward(ctx, *args)
        finally:
            _then.region = before

    @functools.wraps(trace)
    def trace_again(*args: Any) -> Any:
        with _then.region:
            return trace(*args)

    forward.habana_mp = True  # type: ignore[attr-defined]
    op.forward, op.backward = staticmethod(forward), staticmethod(backward)
    setattr(*NESTED_TRACES.place("trace"), trace_again)
