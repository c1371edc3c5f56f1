"""`habana_frameworks.torch.hpu.graphs`: what records the operations of a model once and runs them again, on Gaudi without Python.

Here modules and functions run as they are, so what wraps one is a switch (habana_mp/_hpu/gaudi_switches.py). `HPUGraph` does record and run
again, because a script that uses it reads its results from the tensors of the first run.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

import habana_mp._core as _core
from habana_mp._scope.without_casts import without_casts
from habana_mp._torch_private import RECORDING

__all__ = [
    "CachedParams",
    "HPUGraph",
    "ModuleCacher",
    "copy_to",
    "graph",
    "input_hash",
]


class ModuleCacher:
    """Keeps a graph for each form of the inputs, on Gaudi.

    >>> model = ModuleCacher(max_graphs=10)(model=model, inplace=True)
    """

    def __init__(self, max_graphs: int = 10) -> None:
        self.max_graphs = max_graphs

    def __call__(
        self,
        model: torch.nn.Module,
        use_lfu: bool = False,
        inplace: bool = True,  # noqa: ARG002 - Habana's
        *_: Any,
        have_grad_accumulation: bool = False,
        **__: Any,
    ) -> torch.nn.Module:
        """The model as it is, with the methods that these options give it on Gaudi; they do nothing."""
        for name in ("capture_start", "capture_end") if use_lfu else ():
            setattr(model, name, nothing)
        if have_grad_accumulation:
            model.set_iteration_count = nothing  # type: ignore[assignment]
        return model


def nothing(*_: Any, **__: Any) -> None:
    """A method that Gaudi's package gives to models."""


class _Call(NamedTuple):
    function: Callable[..., Any]
    args: Any
    kwargs: Any
    result: Any


@functools.cache
def _recorder_class() -> Any:
    mode: Any = RECORDING.mode
    aliases = functools.partial(RECORDING.map_tensors, torch.Tensor, torch.Tensor.detach)

    class Recorder(mode):  # type: ignore[misc]
        def __init__(self, calls: list[_Call]) -> None:
            super().__init__()
            self._calls = calls

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            # The same memory under the shapes of now: a later op may change the shape of a tensor in place.
            before = aliases(args), aliases(kwargs)
            result = func(*args, **kwargs)
            # What changes the shape of a tensor alone (unsqueeze_) is in the aliases of the calls behind it.
            if torch.Tag.inplace_view not in func.tags:
                self._calls.append(_Call(func, *before, aliases(result)))
            return result

    return Recorder


class _Recording(threading.local):
    graph: HPUGraph | None = None


_on_this_thread = _Recording()


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
        self._in_inference_mode = False

    def capture_begin(self, *_: Any, **__: Any) -> None:
        """Record from here on, on this thread and in the backward passes that it starts.

        Raises:
            RuntimeError: a graph records on this thread already.
        """
        if _on_this_thread.graph is not None or self._recorder is not None:
            raise RuntimeError("capture_begin: a graph is recording already")
        self._calls.clear()
        self._in_inference_mode = torch.is_inference_mode_enabled()
        recorder = _recorder_class()(self._calls)
        recorder.__enter__()
        self._recorder, _on_this_thread.graph = recorder, self

    def capture_end(self) -> None:
        """End the recording.

        Raises:
            RuntimeError: this graph records nothing on this thread.
        """
        if _on_this_thread.graph is not self:
            raise RuntimeError("capture_end without capture_begin on this thread")
        recorder, self._recorder, _on_this_thread.graph = self._recorder, None, None
        recorder.__exit__(None, None, None)

    def replay(self, *_: Any, **__: Any) -> None:
        """Run what was recorded.

        Raises:
            RuntimeError: nothing has been recorded, or it is being recorded; or a result has another shape than the first time, as that of
                ``x[x > 0]`` may have.
        """
        if self._recorder is not None or not self._calls:
            raise RuntimeError("replay needs a graph that capture_begin and capture_end recorded")
        with torch.inference_mode(self._in_inference_mode), contextlib.ExitStack() as stack:
            # They were recorded with their casts.
            for device in {"cpu", _core.hpu_mapped_to() or "cpu"}:
                stack.enter_context(torch.autocast(device, enabled=False))
            _run_again(self._calls)

    def reset(self) -> None:
        """Forget what was recorded."""
        self._calls.clear()


@without_casts
@torch.no_grad()
def _run_again(calls: Sequence[_Call]) -> None:
    for call in calls:
        _write(call.function, call.result, call.function(*call.args, **call.kwargs))


def _write(function: Any, old: Any, new: Any) -> None:
    if isinstance(old, torch.Tensor):
        if old.shape != new.shape:
            raise RuntimeError(
                f"{function} gives a tensor of shape {tuple(new.shape)}; when it was recorded it was {tuple(old.shape)}"
            )
        # A view, or what was written in place, is up to date.
        if old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
            old.copy_(new)
    elif isinstance(old, (tuple, list)):
        for each, other in zip(old, new, strict=True):
            _write(function, each, other)


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
        if not isinstance(src, torch.Tensor) or dst.shape != src.shape:
            raise ValueError(f"copy_to: a tensor of shape {tuple(dst.shape)} cannot take {_shown(src)}")
        with torch.no_grad():
            dst.copy_(src)
    elif isinstance(dst, Mapping):
        if not isinstance(src, Mapping) or dst.keys() != src.keys():
            raise ValueError(f"copy_to: a dict of {[*dst]} cannot take {_shown(src)}")
        for key, value in dst.items():
            copy_to(value, src[key])
    elif isinstance(dst, (list, tuple)):
        if not isinstance(src, (list, tuple)) or len(dst) != len(src):
            raise ValueError(f"copy_to: {len(dst)} values cannot take {_shown(src)}")
        for each, other in zip(dst, src, strict=True):
            copy_to(each, other)


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"one of shape {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"one of {[*value]}"
    return f"{len(value)}" if isinstance(value, (list, tuple)) else repr(value)


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
    if isinstance(value, (set, frozenset)):
        # In any order; two tensors of one shape and dtype are two.
        return "set", frozenset(Counter(map(_form, value)).items())
    return value


@dataclass(eq=False)
class CachedParams:
    """A graph with the tensors that it reads and writes."""

    graph_inputs: Any
    graph_outputs: Any
    graph: HPUGraph | None = None
