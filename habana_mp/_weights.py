"""The weight cache opened and closed, and what is watched while it is open (src/weights/weight_cache.h). ``hmp.cache`` looks at it."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

import habana_mp._core as _core
from habana_mp import _torch_private as private
from habana_mp._scope.fork_lock import fork_lock
from habana_mp._show.warning import warn
from habana_mp.cache.looks import look_again


class Asked(NamedTuple):
    """What the environment asks of the cache."""

    limit: int
    """Bytes that the copies may take; 0 switches the cache off."""
    packing: bool
    """Whether copies are packed."""


def asked() -> Asked:
    """ValueError for a variable that says nothing."""
    text = os.environ.get("HABANA_MP_CACHE_BYTES", "")
    if text and (not text.isascii() or not text.isdigit() or len(text) > 18):
        raise ValueError(
            f"HABANA_MP_CACHE_BYTES is {text!r}; it takes a whole number of bytes (0 switches the weight cache off)"
        )
    packing = os.environ.get("HABANA_MP_PACKED_WEIGHTS", "") or "on"
    if packing not in ("on", "off"):
        raise ValueError(f"HABANA_MP_PACKED_WEIGHTS is {packing!r}; it takes on or off")
    limit = int(text) if text else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
    return Asked(limit, packing == "on")


# AliasKind of src/weights/alias_watch.h.
_SEEN, _EXPORTED, _SET = range(3)

# Through these somebody can write to a weight unseen: while they hold the alias, or, the exported ones, at any time.
_WATCHED = {
    "data": _SEEN,
    "untyped_storage": _SEEN,
    "data_ptr": _SEEN,
    "set_": _SET,
    "numpy": _EXPORTED,
    "__dlpack__": _EXPORTED,
}
# Installed by the first region of autocast. Under a conversion the same patches are rows of the conversion's own set.
_patches_of_autocast = _core.PatchSet()


def _replayed(original: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(original)
    def replay(graph: Any) -> None:
        # A captured step changes weights and runs no hook.
        original(graph)
        _core.end_cached_after_replay()

    return replay


# torch 2.13 has graphs for every accelerator.
_GRAPHS = [torch.cuda.CUDAGraph, *filter(None, [getattr(torch.accelerator, "Graph", None)])]
_REPLAYS = [(graph, _replayed(graph.replay)) for graph in _GRAPHS]


def _to_capsule(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def to_dlpack(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        _core.end_cached_alias((tensor,), True)
        return original(tensor, *args, **kwargs)

    return to_dlpack


def _put_back(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def set_versions(tensors: tuple[Any, ...], versions: tuple[int, ...]) -> None:
        original(tensors, versions)
        _core.end_cached_alias(tensors, False)

    return set_versions


def patches() -> Iterator[tuple[Any, str, Any]]:
    if _patches_of_autocast.installed():
        return
    for graph, replay in _REPLAYS:
        yield graph, "replay", replay
    for name, watch in _WATCHED.items():
        # The class returns torch's own, also while a watch is in its place.
        yield torch.Tensor, name, _core.alias_watch(getattr(torch.Tensor, name), watch)
    yield from _watched_functions()


@functools.cache
def _watched_functions() -> list[tuple[Any, str, Any]]:
    """Made when none of them is patched."""
    rows = []
    if private.CAPSULES.works:
        to_dlpack = _to_capsule(private.CAPSULES.capsule)
        rows += [
            (*private.CAPSULES.place("capsule"), to_dlpack),
            (*private.CAPSULES.place("versioned"), _to_capsule(private.CAPSULES.versioned)),
            *((owner, "to_dlpack", to_dlpack) for owner in (torch, torch.utils.dlpack)),
        ]
    if private.VERSIONS.works:
        rows.append((*private.VERSIONS.place("put_back"), _put_back(private.VERSIONS.put_back)))
    return rows


def _after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    # Fused optimizers do not move the version counters of what they change. Compiled steps do.
    if not torch.compiler.is_compiling():
        _core.end_cached_after_step([each for group in optimizer.param_groups for each in group["params"]])


os.register_at_fork(after_in_child=_core.leave_others_of_cache_behind)

# Of the cache and what is watched for it: opened, closed and asked for on any thread.
lock = fork_lock()
_hooks: list[Any] = []


def _know_ops() -> None:
    """Has compilers and exports know what our ops are by their kernels, which run on what stands for tensors: torch knows each op inside.

    Compilers find the strides of results. (torch would run the kernels on tensors without a device, for which its convolutions have other
    strides than on the CPU.) Programs whose ops are decomposed, as those for ONNX are, get casts or roundings to 8 bits, and ops of aten.
    """
    if not private.WEIGHT_OPS.works:
        return
    kernels = {}
    for name in _core.WEIGHT_OPS:
        op = getattr(torch.ops.habana_mp, name).default
        run_at = private.WEIGHT_OPS.of(op, "run_at", None)
        if run_at is None:
            return
        kernels[op] = functools.partial(run_at, private.WEIGHT_OPS.kernel)
        torch.library.register_fake(f"habana_mp::{name}", kernels[op])
    # The public function alone: what Inductor reads has none of ours, which it would refuse in a process of CI.
    torchs_table, run = torch.export.default_decompositions, torch.export.ExportedProgram.run_decompositions

    @functools.wraps(torchs_table)
    def default_decompositions() -> torch.export.CustomDecompTable:
        table = torchs_table()
        table.update(kernels)  # type: ignore[no-untyped-call]
        return table

    @functools.wraps(run)
    def run_decompositions(program: Any, decomp_table: Any = None, *args: Any, **kwargs: Any) -> Any:
        return run(program, default_decompositions() if decomp_table is None else decomp_table, *args, **kwargs)

    torch.export.default_decompositions = default_decompositions
    torch.export.ExportedProgram.run_decompositions = run_decompositions  # type: ignore[method-assign]


_know_ops()


def is_open() -> bool:
    return bool(_hooks)


def open_cache(settings: Asked) -> None:
    """Called by ``convert``, and for the first region of autocast; with the lock."""
    _core.set_packing(settings.packing)
    _core.set_cache_limit(settings.limit)
    if not _hooks:
        _hooks.append(register_optimizer_step_post_hook(_after_step))


def open_for_autocast() -> None:
    """Called when a region is made. Does nothing where the cache is open; after ``revert`` the next region opens it again."""
    find_exports()
    if _hooks:
        return
    with lock:
        if _hooks:
            return
        settings = asked()
        if not _patches_of_autocast.installed():  # by one that was interrupted
            _patches_of_autocast.install(patches())
        open_cache(settings)


@functools.cache
def find_exports() -> None:
    """Marks the weights that somebody has exported before anything was watched: once, until ``revert``.

    A conversion finds them when they are used. At the dispatcher those who pass a weight on hold it too, and nothing shows who else does.
    """
    weights = gc.get_objects()

    def are_held() -> bool:
        weights[:] = _core.weights_held_elsewhere(weights)
        return bool(weights)

    if not look_again(are_held):
        return
    # Type by type: isinstance would ask proxies what they stand for.
    scripted = [each for each in gc.get_objects() if issubclass(type(each), torch.jit.ScriptModule)]
    known = {id(p) for module in scripted for p in module.parameters()}
    _core.end_cached_alias([each for each in weights if id(each) not in known], True)


def close_cache() -> None:
    with lock:
        find_exports.cache_clear()
        _core.set_cache_limit(0)
        while _hooks:
            _hooks.pop().remove()
        _patches_of_autocast.uninstall()
        _core.clear_cache()
        left = _core.restore_all_pages()
    if left:
        warn(f"{left} offloaded weights stay in their file: memory is short or the disk fails")
