"""`habana_frameworks.torch.hpu.graphs`: what records the operations of a model once and runs them again, on Gaudi without Python.

Here modules and functions run as they are, so those that would wrap one return it. `HPUGraph` does record and run again, because a script
that uses it reads its results from the tensors of the first run.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch

from habana_mp._scope.without_casts import without_casts
from habana_mp._torch_private import RECORDING

__all__ = [
    "CachedParams",
    "HPUGraph",
    "ModuleCacher",
    "copy_to",
    "graph",
    "input_hash",
    "make_graphed_callables",
    "wrap_in_hpu_graph",
    "wrap_in_hpu_graph_func",
]

_T = TypeVar("_T")


def wrap_in_hpu_graph(module: _T, *_: Any, **__: Any) -> _T:
    """The module as it is. Habana's options (asynchronous, max_graphs, ...) are accepted."""
    return module


def wrap_in_hpu_graph_func(func: _T, *_: Any, **__: Any) -> _T:
    """The function as it is."""
    return func


def make_graphed_callables(callables: _T, sample_args: Any, *_: Any, **__: Any) -> _T:  # noqa: ARG001 - torch.cuda's
    """The callables as they are."""
    return callables


class ModuleCacher:
    """Keeps a graph for each form of the inputs, on Gaudi.

    >>> model = ModuleCacher(max_graphs=10)(model=model, inplace=True)
    """

    def __init__(self, max_graphs: int = 10) -> None:
        self.max_graphs = max_graphs

    def __call__(self, model: torch.nn.Module, *_: Any, **__: Any) -> torch.nn.Module:
        """The model as it is, with the methods that scripts call on a wrapped one; they do nothing."""
        for name in ("set_iteration_count", "capture_start", "capture_end"):
            setattr(model, name, _nothing)
        return model


def _nothing(*_: Any, **__: Any) -> None:
    pass


class _Call(NamedTuple):
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Any


@functools.cache
def _recorder_class() -> Any:
    mode: Any = RECORDING.mode

    class Recorder(mode):  # type: ignore[misc]
        def __init__(self, calls: list[_Call]) -> None:
            super().__init__()
            self._calls = calls

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            self._calls.append(_Call(func, args, kwargs or {}, result))
            return result

    return Recorder


class HPUGraph:
    """Operations that ran once, casts among them, to run again on the same tensors.

    >>> graph = HPUGraph()
    >>> graph.capture_begin(); y = model(x); graph.capture_end()
    >>> x.copy_(other); graph.replay()  # y is that of other

    A run again reads the tensors that the first run read, and writes its results into the tensors that the first run made. Python code does not
    run again, and random numbers are new ones.
    """

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._recorder: Any = None

    def capture_begin(self, *_: Any, **__: Any) -> None:
        """Record from here on, on this thread and in the backward passes that it starts.

        Raises:
            RuntimeError: a capture is on already.
        """
        if self._recorder is not None:
            raise RuntimeError("capture_begin: this graph records already")
        self._calls.clear()
        self._recorder = _recorder_class()(self._calls)
        self._recorder.__enter__()

    def capture_end(self) -> None:
        """End the recording.

        Raises:
            RuntimeError: nothing is recorded.
        """
        if self._recorder is None:
            raise RuntimeError("capture_end without capture_begin")
        recorder, self._recorder = self._recorder, None
        recorder.__exit__(None, None, None)

    def replay(self, *_: Any, **__: Any) -> None:
        """Run what was recorded.

        Raises:
            RuntimeError: nothing has been recorded, or it is being recorded.
        """
        if self._recorder is not None or not self._calls:
            raise RuntimeError("replay needs what capture_begin and capture_end have recorded")
        _run_again(self._calls)

    def reset(self) -> None:
        """Forget what was recorded."""
        self._calls.clear()


@without_casts  # they were recorded
@torch.no_grad()
def _run_again(calls: Sequence[_Call]) -> None:
    for call in calls:
        _write(call.result, call.function(*call.args, **call.kwargs))


def _write(old: Any, new: Any) -> None:
    if isinstance(old, torch.Tensor):
        # A view, or what was written in place, is up to date.
        if old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
            old.copy_(new)
    elif isinstance(old, (tuple, list)):
        for each, other in zip(old, new, strict=True):
            _write(each, other)


@contextlib.contextmanager
def graph(hpu_graph: HPUGraph, *_: Any, **__: Any) -> Iterator[None]:
    """A ``with`` statement whose operations a graph records; streams are accepted."""
    hpu_graph.capture_begin()
    try:
        yield
    finally:
        hpu_graph.capture_end()


def copy_to(dst: Any, src: Any) -> None:
    """Copy tensors into tensors of the same form, in lists, tuples and dicts too. What is no tensor stays.

    Raises:
        ValueError: the two have not the same form.
    """
    if isinstance(dst, torch.Tensor):
        with torch.no_grad():
            dst.copy_(src)
    elif isinstance(dst, Mapping):
        if dst.keys() != src.keys():
            raise ValueError(f"copy_to: {[*dst]} cannot take {[*src]}")
        for key, value in dst.items():
            copy_to(value, src[key])
    elif isinstance(dst, (list, tuple)):
        if len(dst) != len(src):
            raise ValueError(f"copy_to: {len(dst)} values cannot take {len(src)}")
        for each, other in zip(dst, src, strict=True):
            copy_to(each, other)


def input_hash(inputs: Any) -> int:
    """A hash by which inputs share a graph: of tensors their shapes and dtypes count, of other values what they are."""
    return hash(_form(inputs))


def _form(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return "tensor", tuple(value.shape), value.dtype
    if isinstance(value, Mapping):
        return "dict", tuple((key, _form(each)) for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return "list", tuple(map(_form, value))
    return value


class CachedParams:
    """A graph with the tensors that it reads and writes: attributes ``graph_inputs``, ``graph_outputs`` and ``graph``."""

    def __init__(self, graph_inputs: Any, graph_outputs: Any, graph: HPUGraph | None = None) -> None:
        self.graph_inputs = graph_inputs
        self.graph_outputs = graph_outputs
        self.graph = graph
