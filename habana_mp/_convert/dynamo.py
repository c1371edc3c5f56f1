"""What torch.compile needs: patched ops traced, and graphs and caches kept apart by policy.

Dynamo knows torch's functions by equality, in tables that it builds once, at import and at first use. A patched op equals its
original, so a table built while patches are in place finds the originals as well; but it would also take the patched op for
torch's own and trace it as one opaque op. So its look-up is replaced with one that finds no patched op. Nothing here imports Dynamo.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

import habana_mp._core as _core
from habana_mp._compiled import export, rounding
from habana_mp._convert.patched_op import PatchedOp
from habana_mp._feature import whole
from habana_mp._scope.after_import import after_import
from habana_mp._torch_private import COMPILED_CALLS, DYNAMO, INDUCTOR, TRACE_RULES, TRACED_CODE


def _have_ops_traced() -> None:
    if not TRACE_RULES.works or getattr(TRACE_RULES.look_up, "habana_mp", False):
        return
    lookup, methods = TRACE_RULES.look_up, TRACE_RULES.methods

    @functools.wraps(lookup)
    def lookup_inner(obj: Any, *args: Any, **kwargs: Any) -> Any:
        # A patched op would be taken for its original.
        return lookup(object() if isinstance(obj, PatchedOp) else obj, *args, **kwargs)

    @functools.cache
    def get_tensor_method() -> frozenset[Any]:
        # Torch's own looks for the types that methods of torch have.
        patched = (value for value in vars(torch.Tensor).values() if isinstance(value, PatchedOp))
        return frozenset(methods()) | {op.original for op in patched if not op.form.python}

    lookup_inner.habana_mp = True  # type: ignore[attr-defined]
    setattr(*TRACE_RULES.place("look_up"), lookup_inner)
    setattr(*TRACE_RULES.place("methods"), get_tensor_method)


def _have_ops_called_uncast() -> None:
    """Compiled code calls some ops, such as convolution, by what Inductor found at its import. The graph has their casts."""
    kernels: dict[str, Any] = vars(COMPILED_CALLS.kernels) if COMPILED_CALLS.works else {}
    kernels.update({name: op.original for name, op in kernels.items() if isinstance(op, PatchedOp)})


def prepare() -> None:
    """Sees to it that Dynamo traces patched ops, now or when it is imported, and that torch.export records casts inside compounds."""
    after_import(DYNAMO, _have_ops_traced)
    after_import(INDUCTOR, _have_ops_called_uncast)
    export.serve()
    rounding.serve()


def patches(policy: Any) -> Iterator[tuple[Any, ...]]:
    """A graph holds calls of Tensor methods by name, without their casts: so the keys of the caches on disk hold the policy."""
    from torch.compiler import config

    tag = config.cache_key_tag
    before = tag.partition("habana_mp:")[0]
    yield config, "cache_key_tag", f"{before}habana_mp:{_core.TRACED_CASTS}:{hash(policy._core):x}", before


def drop_stale_graphs() -> None:
    """Graphs compiled under another policy hold its casts; compiled functions compile again at their next call.

    Where there are none torch is not asked: on a machine with CUDA it imports Inductor for that, which takes a second. While another thread still
    imports Dynamo there are none.
    """
    if whole(DYNAMO) and TRACED_CODE.get("seen") != []:
        torch.compiler.reset()
