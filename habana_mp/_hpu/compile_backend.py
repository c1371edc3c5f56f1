"""Gaudi's backends of torch.compile. Here each is Inductor. torch finds them by their names while "hpu" is the name of another device."""

from __future__ import annotations

import sys
from typing import Any

import habana_mp._core as _core
from habana_mp._scope.after_import import after_import
from habana_mp._torch_private import DONATED, DYNAMO, HPU_BACKEND

# The newest first.
_NAMES = ("hpu_backend", "aot_hpu_training_backend", "aot_hpu_inference_backend")


def register_backends() -> None:
    """By name, for all that asks for a backend: now, or when Dynamo is imported."""
    after_import(DYNAMO, _register)


def unregister_backends() -> None:
    if DYNAMO not in sys.modules or not HPU_BACKEND.works:
        return
    for name in _NAMES:
        if HPU_BACKEND.by_name.get(name) is hpu_backend:
            del HPU_BACKEND.by_name[name], HPU_BACKEND.names[name]


def _register() -> None:
    if _core.hpu_mapped_to() is None or not HPU_BACKEND.works:
        return
    for name in _NAMES:
        if name not in HPU_BACKEND.names:
            HPU_BACKEND.register(hpu_backend, name)


def hpu_backend(graph: Any, inputs: Any, **_: Any) -> Any:
    """Inductor, by which a graph may be run backward again with retain_graph=True, as on Gaudi. The options are Gaudi's and not used."""
    DONATED.need()
    owner, name = DONATED.place("indices")
    original = getattr(owner, name)
    # The backward graph reuses none of the tensors saved for it. torch's own setting, donated_buffer, would have to stay off for the process:
    # torch asks it in each backward pass, too. The option changes comments in generated code, and the keys of Inductor's caches: these do
    # not hold what a graph reuses, so that the graph of a plain torch.compile could be taken, which reuses them.
    setattr(owner, name, lambda *_: [])
    try:
        return HPU_BACKEND.look_up("inductor")(graph, inputs, config_patches={"comment_origin": True})
    finally:
        setattr(owner, name, original)
