"""``torch.jit.script`` under a conversion.

It compiles from source, where no call passes a patched op. So it compiles over torch's own functions, and refuses code that uses ops
of the lower or the fp32 list: they would run without their casts, and nobody would see it (F170).
"""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Iterator
from typing import Any

import torch

import habana_mp._core as _core
from habana_mp._scope import in_force
from habana_mp._scope.disable_casts import casts_off
from habana_mp._torch_private import FRAMES_UP, SCRIPTED, one_frame_up

_script = torch.jit.script


@functools.wraps(_script)
def script(obj: Any, *args: Any, **kwargs: Any) -> Any:
    _core.conversion_patches.suspend()
    try:
        # Names in the source of a class are looked up so many frames above: this one is one more.
        if FRAMES_UP.works:
            args, kwargs = one_frame_up(args, kwargs)
        scripted = _script(obj, *args, **kwargs)
    finally:
        _core.conversion_patches.resume()
    if not casts_off() and not _is_torch_own(obj):
        _refuse_listed_ops(obj, scripted)
    return scripted


def _is_torch_own(obj: Any) -> bool:
    """Whether torch scripts what is its own: forward-mode AD does at its first use, with decompositions that define what an op means."""
    return isinstance(obj, (types.FunctionType, type)) and obj.__module__.partition(".")[0] == "torch"


def _refuse_listed_ops(obj: Any, scripted: Any) -> None:
    policy = in_force.policy
    if policy is None:
        return
    listed = {}
    for graph in _graphs(scripted):
        for op in re.findall(r"= aten::(\w+)\(", graph):
            rule = policy._rule(op)
            if rule.action in ("lower", "fp32"):
                listed[op] = rule.action
    if listed:
        ops = ", ".join(f"{op} ({action})" for op, action in sorted(listed.items()))
        raise RuntimeError(
            f"torch.jit.script compiles from source, where hmp.convert cannot cast, and {getattr(obj, '__name__', type(obj).__name__)} uses ops "
            f"that policy {policy.name!r} casts: {ops}. Use torch.jit.trace, which records the casts, or script it inside "
            "hmp.disable_casts(), to run it as torch does."
        )


def _graphs(scripted: Any) -> Iterator[str]:
    if isinstance(scripted, torch.jit.ScriptFunction):
        yield str(scripted.inlined_graph)
    elif isinstance(scripted, torch.jit.ScriptModule) and SCRIPTED.works:
        compiled = SCRIPTED.of(scripted, "compiled")
        for name in SCRIPTED.methods(compiled):
            yield str(SCRIPTED.method(compiled, name).inlined_graph)
