"""``torch.autocast(..., enabled=False)`` inside the forward of a module means "no casts here", those of ``convert`` too.

At the level of the script it changes nothing: scripts for Gaudi write ``enabled=args.autocast`` beside ``--hmp``. So who enters it looks
at the Python stack for the call of a module.
"""  # (D43)

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import torch

import habana_mp._core as _core
from habana_mp._scope.disable_casts import CASTS_OFF, casts_off
from habana_mp._torch_private import (
    BACKWARD_TRACE,
    DYNAMO,
    MODULE_CALLS,
    TRACE_END,
    TRACED_MODULES,
    add_call,
    calling_frame,
    nn_modules_of,
    set_autocast_enabled,
)

_autocast = torch.amp.autocast_mode.autocast
_torch_enter: Any = _autocast.__enter__
_torch_exit: Any = _autocast.__exit__
_torch_call = MODULE_CALLS.get("call")

# Modules whose frames are between the code that enters a region and what runs here. The decorator for backward passes enters what its
# forward had, which nobody has written there.
_BETWEEN = {__name__, "contextlib", *(f"torch.{each}amp.autocast_mode" for each in ("", "cuda.", "cpu."))}
_OF_BACKWARD = "decorate_bwd"
# Parts of a script, though Lightning has DistributedDataParallel call them as the forward of a module.
_STEPS = {"training_step", "validation_step", "test_step", "predict_step"}


class _Entered(NamedTuple):
    region: Any
    before: bool | None  # whether casts were off; None where the region changed nothing
    trace: Any  # the translator of Dynamo in whose code it is entered


class _Thread(threading.local):
    """The regions with ``enabled=False`` that a thread is in."""

    def __init__(self) -> None:
        self.entered: list[_Entered] = []


_this_thread = _Thread()
_for_transformers = _core.PatchSet()


def patches() -> Iterator[tuple[Any, ...]]:
    if MODULE_CALLS.works:
        yield _autocast, "__enter__", _enter
        yield _autocast, "__exit__", _exit


def _begin(region: Any) -> tuple[Any, _Entered | None, list[_Entered]]:
    result = _torch_enter(region)
    # Also a region for CUDA that torch itself switches off because there is no CUDA.
    if region._enabled:
        return result, None, _this_thread.entered
    try:
        in_forward, trace = _where_entered()
    except BaseException:  # its end will not be called
        _torch_exit(region, None, None, None)
        raise
    if in_forward:
        _trace(trace, True)
    return result, _Entered(region, casts_off() if in_forward else None, trace), _this_thread.entered


def _end(entry: _Entered | None, region: Any, *exc: Any) -> Any:
    if entry is not None and entry.before is not None:
        _trace(entry.trace, entry.before)
    return _torch_exit(region, *exc)


# A with statement runs C in place of these two, which Dynamo finds behind a graph break. A signal in the midst of them would leave casts off.


@functools.wraps(_torch_enter)
def _enter(self: Any) -> Any:
    result, entry, entered = _begin(self)
    if entry is not None:
        entered.append(entry)
        if entry.before is not None:
            set_autocast_enabled(CASTS_OFF, True)
    return result


@functools.wraps(_torch_exit)
def _exit(self: Any, *exc: Any) -> Any:
    entered = _this_thread.entered
    for place in reversed(range(len(entered))):
        if entered[place].region is self:
            entry = entered.pop(place)
            if entry.before is not None:
                set_autocast_enabled(CASTS_OFF, entry.before)
            return _end(entry, self, *exc)
    return _torch_exit(self, *exc)


_core.run_torchs_in_c(_enter, _exit, _begin, _end, _this_thread)


def leave_all() -> None:
    """Called by ``revert``: a region that was entered on this thread and never left has no end after it."""
    while _this_thread.entered:
        _, before, trace = _this_thread.entered.pop()
        if before is not None:
            set_autocast_enabled(CASTS_OFF, before)
            _trace(trace, before)


def _trace(trace: Any, off: bool) -> None:
    if trace is not None:  # what lowers the graph, or runs it, no longer knows which module a call was in
        add_call(trace, torch.set_autocast_enabled, CASTS_OFF, off)


def _where_entered() -> tuple[bool, Any]:
    """Whether it is in the forward of a module, and the translator of the code where Dynamo traces it: no frame runs that code."""
    frame = calling_frame()
    while frame is not None and _module(frame) in _BETWEEN and frame.f_code.co_name != _OF_BACKWARD:
        frame = frame.f_back
    if frame is None:
        return False, None
    if _module(frame).startswith(f"{DYNAMO}.") and TRACE_END.works:
        trace = TRACE_END.translator.current_tx()
        called_in = nn_modules_of(trace) or _is_in_forward(frame)
        return bool(called_in) and not _is_in_traced_backward(frame), trace
    # Checkpointing, DataParallel and graphs enter what they have found: nobody has written it there.
    return not _module(frame).startswith("torch.") and _is_in_forward(frame), None


def is_in_forward() -> bool:
    """Whether a module is being called on this thread."""
    return _is_in_forward(calling_frame())


def called_in_forward(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A call that counts as one in the forward of a module: checkpointing calls parts of it in the backward pass."""
    return function(*args, **kwargs)


_CALLS = {called_in_forward.__code__, getattr(_torch_call, "__code__", None)}


def _is_in_forward(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code in _CALLS:
            return True
        if frame.f_code.co_name in _STEPS:
            return False
        frame = frame.f_back
    return False


def _is_in_traced_backward(frame: FrameType | None) -> bool:
    """As in eager mode, where the backward pass of an autograd.Function is not called in a module, but may call one."""  # (D43)
    if not BACKWARD_TRACE.works:
        return False
    code = BACKWARD_TRACE.call.__code__
    while frame is not None and frame.f_code is not code:
        if _module(frame) == TRACED_MODULES:
            return False
        frame = frame.f_back
    return frame is not None


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "torch.fx"))  # torch.fx gives its code no name


def reach_transformers() -> None:
    """What transformers has for "force float32" leaves ``torch.autocast`` out where autocast is off, as it is under ``convert``."""
    generic = sys.modules.get("transformers.utils.generic")
    helper = getattr(generic, "maybe_autocast", None)
    code = getattr(helper, "__code__", None)
    parameters = _maybe_autocast.__code__.co_varnames[: _maybe_autocast.__code__.co_argcount]
    if (
        code is None
        or _for_transformers.installed()
        or code.co_varnames[: code.co_argcount] != parameters
        or code.co_freevars
    ):
        return
    # The function is in the namespaces of all models.
    _for_transformers.install([(helper, "__code__", _maybe_autocast.__code__, code)])


def leave_transformers() -> None:
    _for_transformers.uninstall()


def _maybe_autocast(
    device_type: str, dtype: torch.dtype | None = None, enabled: bool = True, cache_enabled: bool | None = None
) -> Any:
    # It runs with the names of another module, so it imports what it needs.
    import contextlib

    import torch

    if device_type == "meta":
        return contextlib.nullcontext()
    return torch.autocast(device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)
