"""How Inductor rounds in graphs that a policy of ours is in force for.

Inductor computes a fused kernel in float32, and drops a cast to bfloat16 that is followed by a cast back. A setting of its own keeps the
roundings of uncompiled code. That is a setting of the whole process, which belongs to the user: here it holds while one of our graphs is
compiled, its backward pass too, which is compiled later. Inductor has its settings in the keys of its caches.

Knows which policies a graph is traced under; its casts are looked at in graphs.py.
"""  # (D55)

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

import habana_mp._core as _core
from habana_mp._compiled import backward_traces, formulas, graphs
from habana_mp._compiled.graphs import EXACT, FUSED
from habana_mp._feature import whole
from habana_mp._scope import in_force, traced
from habana_mp._scope.after_import import after_import
from habana_mp._torch_private import COMPILE_FX, DYNAMO, INDUCTOR


def serve() -> None:
    """From now on Inductor rounds as the policies say, once it is imported, and what a backward pass traces again is cast."""
    after_import(INDUCTOR, _ask_the_policies)
    backward_traces.serve()


def _ask_the_policies() -> None:
    if not COMPILE_FX.works or getattr(COMPILE_FX.compile, "habana_mp", False):
        return
    compile_by_torch: Callable[..., Any] = COMPILE_FX.compile
    inner = COMPILE_FX.inner
    settings, setting = COMPILE_FX.place("rounds")

    @functools.wraps(compile_by_torch)
    def compile_fx(
        model_: Any,
        example_inputs_: Any,
        inner_compile: Any = inner,
        config_patches: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        policies = policies_of(model_)
        exact = any(policy.compiled == EXACT for policy in policies)  # one setting holds for a whole graph
        if policies:
            # Of one with patches, torch calls this function once more, with the patches in force.
            if exact and not getattr(settings, setting):
                config_patches = {**(config_patches or {}), setting: True}
            inner_compile = formulas.own_in_caches()(inner_compile)
            inner_compile = graphs.seen(inner_compile, EXACT if exact else FUSED, policies)
        with formulas.exact() if exact else formulas.own_in_caches() if policies else nullcontext():
            return compile_by_torch(model_, example_inputs_, inner_compile, config_patches, *args, **kwargs)

    compile_fx.habana_mp = True  # type: ignore[attr-defined]
    setattr(*COMPILE_FX.place("compile"), compile_fx)


def uncompiled() -> AbstractContextManager[None]:
    """Inside, compiled code runs op by op, as it was written, and nothing more is compiled: for what looks at single ops. Under "exact" that
    is the same program.
    """  # (D55)
    return torch.compiler.set_stance("force_eager") if whole(DYNAMO) else nullcontext()


def policies_of(graph: Any) -> list[_core.Policy]:
    """The policies in force here, and those of the regions inside. Called where Dynamo has just traced the graph."""
    found = [*_core.current_autocast().policies]
    if in_force.policy is not None:
        found.append(in_force.policy._core)
    if isinstance(graph, torch.nn.Module):
        found += [policy for region in traced.regions_in(graph) for policy in region.policies]
    return found
