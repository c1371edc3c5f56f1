"""What ``import``, ``convert`` and ``revert``, and a first region change in torch for good: WHAT_STAYS, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from habana_mp._torch_private import (
    AOT_CACHE,
    CHECKPOINT,
    COMPOSABLE_CHECKPOINT,
    INDUCTOR,
    ONNX_OVERLOADS,
    ONNX_PROMOTION,
    ROUND_TRIPS,
    VERSION,
)

ROOT = Path(__file__).parent.parent.parent


class Change(NamedTuple):
    """Something of torch that is not put back."""

    name: str
    by: str  # "import", "convert", "autocast", "set_policies", "compile" or "gaudi"
    why: str


_THREADS = "regions belong to threads, and none knows whether it is the last"

WHAT_STAYS = (
    *(
        change
        for by in ("convert", "autocast")
        for change in (
            Change("torch._inductor.compile_fx.compile_fx", by, "asks the policies how to round; without one it calls torch's own"),
            Change("sys.meta_path", by, "one finder, until that module is imported"),
            Change("torch._library.utils.handle_dispatch_mode", by, f"{_THREADS}; outside of regions and compound ops it calls torch's own"),
            Change("torch._higher_order_ops.cond.CondAutogradOp.forward", by, f"{_THREADS}; a backward pass may still trace its functions"),
            Change("torch._higher_order_ops.map.MapAutogradOp.forward", by, "as that of cond"),
            Change("torch._higher_order_ops.while_loop.WhileLoopAutogradOp.forward", by, "as that of cond"),
            Change("torch._higher_order_ops.invoke_subgraph.InvokeSubgraphAutogradOp", by, "forward and backward, as that of cond"),
            Change("torch._higher_order_ops.invoke_subgraph.trace_joint_graph_as_bwd", by, "as that of cond"),
        )
    ),
    *(
        (
            Change(f"{AOT_CACHE}.AOTAutogradCacheDetails", "autocast", f"its keys hold the dtypes of autocast; {_THREADS}"),
            Change("sys.meta_path", "autocast", "one finder, until that module is imported"),
        )
        if VERSION < (2, 13)
        else ()
    ),
    *(
        Change(ROUND_TRIPS.paths[name].replace(":", "."), "compile", "keeps casts in graphs of ours; in others it calls torch's own")
        for name in ("of_indices", "remember")
        if name in ROUND_TRIPS.paths
    ),
    *(
        (Change(f"{ONNX_PROMOTION}.find_compatible_op_overload", "compile", "as handle_dispatch_mode"),) if ONNX_OVERLOADS else ()
    ),
    Change("torch.autograd.graph.Node", "import", "knows the type of our backward node as one of its own; graphs may hold nodes"),
    Change("torch.library", "import", "has the fake kernels of our ops for weights; graphs may hold these ops"),
    Change("torch.export.default_decompositions", "import", "knows what our ops for weights are made of; programs may hold these ops"),
    Change("torch.export.exported_program.ExportedProgram.run_decompositions", "import", "as the table above, which it takes where it is given none"),
    Change("torch._dynamo.trace_rules._lookup_inner", "convert", "a patched op may be held by a program; without it, Dynamo took the op for torch's own"),
    Change("torch._dynamo.trace_rules.get_tensor_method", "convert", "as _lookup_inner"),
    Change("steps of optimizers", "convert", "of a class whose first optimizer was made under a conversion: they switch casts off where none are on"),
    Change("sys.meta_path", "convert", "one finder, until Dynamo is imported: for the two above"),
    Change("torch.backends.mha.get_fastpath_enabled", "autocast", f"{_THREADS}; outside of regions it answers as torch's own"),
    Change("torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS", "autocast", "our key is in it; no call has the key outside of regions"),
    Change("torch._ops._higher_order_ops", "autocast", "each passes our key by, which torch cannot take back"),
    Change(CHECKPOINT.paths["generator"].replace(":", "."), "autocast", f"{_THREADS}; a backward pass may still recompute"),
    Change(f"{COMPOSABLE_CHECKPOINT}.{CHECKPOINT.place('generator')[1]}", "autocast", "the same function, which it imports"),
    Change("torch.utils.checkpoint.CheckpointFunction.forward", "autocast", "as its sibling above"),
    Change("torch.Tensor", "autocast", "the watches of the weight cache (data, untyped_storage, data_ptr, set_, numpy, __dlpack__), until hmp.revert"),
    Change("torch.cuda.graphs.CUDAGraph.replay", "autocast", "as those of torch.Tensor"),
    *(  # of torch 2.13
        [Change("torch.accelerator.graphs.Graph.replay", "autocast", "as those of torch.Tensor")]
        if hasattr(torch.accelerator, "Graph")
        else []
    ),
    Change("torch._C._to_dlpack", "autocast", "as those of torch.Tensor"),
    Change("torch.to_dlpack", "autocast", "the same function"),
    Change("torch.utils.dlpack.to_dlpack", "autocast", "the same function"),
    Change("torch._C._to_dlpack_versioned", "autocast", "as those of torch.Tensor"),
    Change("torch._C._autograd._unsafe_set_version_counter", "autocast", "as those of torch.Tensor"),
    Change("torch.optim.optimizer._global_optimizer_post_hooks", "autocast", "as those of torch.Tensor"),
    Change("torch.optim.optimizer.Optimizer.profile_hook_step", "autocast", f"{_THREADS}; what it wraps, and has wrapped, runs without casts"),
    Change("torch.optim.lr_scheduler", "autocast", "the steps of schedulers, as those of optimizers"),
    Change("torch.optim.swa_utils.AveragedModel.update_parameters", "autocast", "as the steps of optimizers"),
    Change("torch.amp.grad_scaler.GradScaler", "autocast", "scale, unscale_, step and update, as the steps of optimizers"),
    Change("the dispatcher", "autocast", "kernels of our key: a call may be in one; no call has the key outside of regions"),
    Change("the C slot of torch.nn.Module._call_impl", "set_policies", "copies of a model may hold policies; other modules are called as before"),
    Change("torch._dynamo.guards.GuardBuilder.EMPTY_NN_MODULE_HOOKS_DICT", "set_policies", "graphs of models without policies are guarded on that"),
    Change("sys.meta_path", "set_policies", "one finder, until Dynamo is imported"),
    Change("torch.xpu.amp", "gaudi", "habana_mp.gaudi gives scripts this module"),
    Change("sys.meta_path", "gaudi", "the finder of Habana's modules; PYTHONPATH and HABANA_MP_DEVICE pass it to child processes"),
)  # fmt: skip


# Everything that torch's modules and classes hold, by name: identity, and what lists, dicts and sets hold. What a run itself fills
# (caches, counters) is there before, because the same runs without the package first.
PROGRAM = """
import copy, importlib, inspect, json, sys, types, warnings
import torch, torch.utils.checkpoint
{imports}

def holds(value):
    if isinstance(value, (list, tuple, set, frozenset)):
        return [id(value), *map(id, value)]
    if isinstance(value, dict):
        return [id(value), *((str(key), id(each)) for key, each in list(value.items()))]
    return id(value)

kept = []

def look():
    found = {{}}
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] not in ("torch", "copy", "warnings") or not isinstance(module, types.ModuleType):
            continue
        for attribute, value in list(vars(module).items()):
            if attribute == "__warningregistry__":
                continue
            kept.append(value)
            found[f"{{name}}.{{attribute}}"] = holds(value)
            if isinstance(value, type) and value.__module__.partition(".")[0] == "torch":
                for member, each in list(vars(value).items()):
                    kept.append(each)
                    found[f"{{value.__module__}}.{{value.__qualname__}}.{{member}}"] = holds(each)
    found["sys.meta_path"] = holds(sys.meta_path)
    return found

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def run():
    for _ in range(2):
        y = torch.utils.checkpoint.checkpoint(model, torch.ones(4, 8, requires_grad=True), use_reentrant=False)
        torch.mm(y, y.T).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

run()
with torch.autocast("cpu"):
    run()
{before}
first = look()
{between}
second = look()
print(json.dumps(sorted(name for name in first.keys() & second.keys() if first[name] != second[name])))
"""
# What torch counts and keeps by itself, as it hands out a handle and as torch.compiler.reset() runs.
OF_TORCH = {
    "torch._dynamo.compiled_autograd.COMPILE_COUNTER",
    "torch._dynamo.eval_frame.cached_backends",
    "torch._dynamo.mutation_guard.GenerationTracker.dynamic_classes",
    "torch._dynamo.mutation_guard.GenerationTracker.generation_values",
    "torch.utils.hooks.RemovableHandle.next_id",
    # What torch.ops has been asked for: our products, torch.ops.habana_mp.
    "torch.jit._builtins._builtin_table",
    "torch.ops._dir",
}
REGION = "with hmp.autocast('cpu'):\n    run()"
DYNAMO = "import torch._dynamo"
COMPILER = f"import {INDUCTOR}"


def changed(imports: str, before: str, between: str) -> list[str]:
    program = PROGRAM.format(imports=imports, before=before, between=between)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return [name for name in found if name not in OF_TORCH]


def named(*by: str) -> set[str]:
    return {change.name for change in WHAT_STAYS if change.by in by}


CASES = {
    "import": ("", "", "from habana_mp import hmp", ["import"]),
    "convert": ("", "from habana_mp import hmp", "hmp.convert(); run(); hmp.revert()", ["convert"]),
    "convert with Dynamo": (DYNAMO, "from habana_mp import hmp", "hmp.convert(); run(); hmp.revert()", ["convert"]),
    "a region": ("", "from habana_mp import hmp", REGION, ["autocast"]),
    "a region, then convert": (
        "", f"from habana_mp import hmp\n{REGION}", "hmp.convert(); run(); hmp.revert()", ["autocast", "convert"]
    ),
    "convert again": (
        DYNAMO, "from habana_mp import hmp\nhmp.convert(); hmp.revert()", "hmp.convert('O2'); run(); hmp.revert()", []
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_nothing_else_of_torch_stays_changed(case: str) -> None:
    imports, before, between, by = CASES[case]
    found = changed(imports, before, between)
    stays = named(*by)
    found = [name for name in found if not name.endswith(".decomposition_table")]  # others import that of torch._decomp
    assert [name for name in found if not any(name == known or name.startswith(f"{known}.") for known in stays)] == []


def test_what_is_said_to_stay_does() -> None:
    """Every entry of the list is still changed, apart from those that are in no namespace."""
    found = changed(f"{DYNAMO}\n{COMPILER}", "", f"from habana_mp import hmp\nhmp.convert(); hmp.revert()\n{REGION}")
    names = named("import", "convert", "autocast") - {"the dispatcher", "sys.meta_path", "steps of optimizers"}
    # Of these two the object stays, and what it holds changes.
    names -= {"torch.autograd.graph.Node", "torch._ops._higher_order_ops"}
    names -= {f"{AOT_CACHE}.AOTAutogradCacheDetails"}  # nothing has been compiled
    assert {name for name in names if not any(each == name or each.startswith(f"{name}.") for each in found)} == set()


def test_what_a_graph_of_ours_changes_stays() -> None:
    paths = [*ROUND_TRIPS.paths.values(), *(ONNX_OVERLOADS.paths.values() if ONNX_OVERLOADS else ())]
    imports = "\n".join(f"import {path.partition(':')[0]}" for path in paths)
    compiled = "torch.compile(torch.relu, fullgraph=True)(torch.ones(8))"
    found = changed(imports, compiled, f"from habana_mp import hmp\nwith hmp.autocast('cpu'):\n    {compiled}")
    assert named("compile") <= {*found}


def test_finders_wait_for_dynamo_and_inductor() -> None:
    program = f"""
import sys
from habana_mp import hmp
def finders():
    return [type(each).__name__ for each in sys.meta_path if type(each).__module__.startswith("habana_mp")]
hmp.convert(); hmp.revert(); hmp.convert(); hmp.revert()
print(finders())
{DYNAMO}
print(finders())
{COMPILER}
print(finders())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    of_onnx = 1 if ONNX_OVERLOADS else 0
    assert done.stdout.splitlines() == [str(["_Finder"] * (count + of_onnx)) for count in (3, 2, 0)]
