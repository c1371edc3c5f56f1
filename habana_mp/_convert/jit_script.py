"""TorchScript under a conversion.

``torch.jit.script`` compiles from source, so what it compiles passes no patched op; nor may it see one. Its code runs in a region of the
conversion's policy instead, whether it was compiled before ``convert`` or after: ops that are given the bfloat16 result of another op and a
float32 weight would raise otherwise.

What ``torch.jit.trace`` has made runs as it is: its casts are recorded, and so is where there were none.
"""  # (D35)

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

import habana_mp._core as _core
from habana_mp._torch_private import FRAMES_UP, SCRIPTED, one_frame_up


def patches() -> Iterator[tuple[Any, str, Any]]:
    if SCRIPTED.works:
        # torch.jit.script comes here, also under a name bound before convert.
        yield *SCRIPTED.place("compile"), _compile
        yield *SCRIPTED.place("compile_module"), _over_originals(SCRIPTED.get("compile_module"))
        yield _method_type, "__call__", _call_method
    yield torch.jit.ScriptFunction, "__call__", _call_function


def _over_originals(original: Callable[..., Any]) -> Callable[..., Any]:
    """A function that compiles source: a patched op is nothing that it can compile."""

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        _core.conversion_patches.suspend()
        try:
            return original(*args, **kwargs)
        finally:
            _core.conversion_patches.resume()

    return function


_script = SCRIPTED.get("compile")
_script_over_originals = _over_originals(_script)
_method_type: Any = SCRIPTED.get("method")


@functools.wraps(_script)
def _compile(obj: Any, *args: Any, **kwargs: Any) -> Any:
    # Names in the source of a class are looked up so many frames above: there are two more.
    if FRAMES_UP.works:
        for _ in range(2):
            args, kwargs = one_frame_up(args, kwargs)
    return _script_over_originals(obj, *args, **kwargs)


def _in_region(call: Callable[..., Any]) -> Callable[..., Any]:
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        return call(self, *args, **kwargs) if _is_traced(self) else _core.call_scripted(call, self, *args, **kwargs)

    return run


_call_function = _in_region(torch.jit.ScriptFunction.__call__)
_call_method = _method_type and _in_region(_method_type.__call__)


def _is_traced(code: Any) -> bool:
    """Whether ``torch.jit.trace`` has made it in this process: then its graph knows the shapes of the example."""
    known = _is_traced_by_code.get(code)
    if known is None:
        graph = code.graph
        computed = [
            value for node in graph.nodes() if node.kind() not in _TENSORS_OF_THE_MODULE for value in node.outputs()
        ]
        known = _is_traced_by_code[code] = any(value.isCompleteTensor() for value in [*graph.inputs(), *computed])
    return known


_TENSORS_OF_THE_MODULE = ("prim::Constant", "prim::GetAttr")
_is_traced_by_code: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
