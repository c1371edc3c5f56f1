"""The modules of Habana's package that there are, where their names are written, and what is refused and why."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Mapping
from typing import Any

from habana_mp._gaudi.absent import absent
from habana_mp._hpu import gaudi_switches
from habana_mp._hpu.gaudi_switches import switch_named

TORCH = "habana_frameworks.torch"
_OURS, _HPU = __name__.rpartition(".")[0], gaudi_switches.__name__.rpartition(".")[0]
_TORCH_HPU = f"{_HPU}.torch_hpu"
XPU_AMP = "torch.xpu.amp"
# Every module and name of this package can be imported: a script falls back to torch's loader where its own cannot be made.
MEDIA = "habana_frameworks.mediapipe"

_WRITTEN = {
    "hmp": f"{_OURS}.hpex",
    "habana_dataloader": f"{_OURS}.data",
    "habana_dataloader.habana_dataset": f"{_OURS}.data",
    MEDIA: "",
    f"{TORCH}.core": f"{_OURS}.core",
    f"{TORCH}.core.hccl": f"{_OURS}.distributed",
    f"{TORCH}.distributed.hccl": f"{_OURS}.distributed",
    f"{TORCH}.gpu_migration": "",  # on Gaudi its import takes "cuda" for "hpu"; here "cuda" stays what it is
    f"{TORCH}.hpex": f"{_OURS}.hpex",
    f"{TORCH}.hpex.experimental.transformer_engine": f"{_OURS}.hpex.transformer_engine",
    f"{TORCH}.hpex.experimental.transformer_engine.recipe": f"{_OURS}.hpex.recipe",
    f"{TORCH}.hpex.kernels": f"{_OURS}.hpex.kernels",
    f"{TORCH}.hpex.kernels.Fp8Ops": f"{_OURS}.ops",
    f"{TORCH}.hpex.movingavrg": f"{_OURS}.hpex.moving_average",
    f"{TORCH}.hpex.normalization": f"{_OURS}.hpex.normalization",
    f"{TORCH}.hpex.optimizers": f"{_OURS}.hpex.optimizers",
    f"{TORCH}.hpu": _TORCH_HPU,
    f"{TORCH}.hpu.graphs": f"{_HPU}.graphs",
    f"{TORCH}.hpu.hpu": _TORCH_HPU,
    f"{TORCH}.hpu.memory": _TORCH_HPU,
    f"{TORCH}.hpu.metrics": f"{_HPU}.metrics",
    f"{TORCH}.hpu.random": _TORCH_HPU,
    f"{TORCH}.utils.distributed_utils": f"{_OURS}.distributed",
    f"{TORCH}.utils.experimental": f"{_OURS}.experimental",
}
_SWITCHED = [f"{TORCH}.{module}" for switch in gaudi_switches.SWITCHES for module in switch.modules.split()]
# Each with the modules round it.
_OUTER = [outer for each in (*_WRITTEN, *_SWITCHED) for outer in itertools.accumulate(each.split("."), "{}.{}".format)]
# module -> where it is written, "" for one that holds switches or other modules alone
HOMES: Mapping[str, str] = {**dict.fromkeys(_OUTER, ""), **_WRITTEN, XPU_AMP: f"{_OURS}.xpu"}

_DECODER = "it reads and decodes images by Gaudi's hardware and libraries; use torch.utils.data.DataLoader"
# A module, or a name in one, that only the hardware can do -> the reason.
REFUSED: Mapping[str, str] = {
    "habana_dataloader": _DECODER,
    f"{TORCH}.hpex.kernels.CustomNms": "it runs a kernel of Gaudi; use torchvision.ops.nms",
    f"{TORCH}.hpex.kernels.fbgemm": "it runs kernels of Gaudi; use fbgemm_gpu, or torch.nn.EmbeddingBag",
    f"{TORCH}.utils.lib_utils": "it is for building kernels of Gaudi's tensor cores (TPC), which run nowhere else",
}


def is_here(module: str) -> bool:
    """Whether there is a module of that name."""
    return module in HOMES or module.startswith(f"{MEDIA}.")


def find(module: str, name: str) -> Any:
    """What a module has under a name. Raises AttributeError where that is nothing."""
    if f"{module}.".startswith(f"{MEDIA}."):
        return absent(f"{module}.{name}", _DECODER)
    home = HOMES[module]
    if home == _TORCH_HPU or (home and name in importlib.import_module(home).__all__):
        return getattr(importlib.import_module(home), name)
    if (switch := switch_named(_below_torch(module), name)) is not None:
        return switch
    raise AttributeError(name)


def names(module: str) -> list[str]:
    """What a module has, the modules below it among them."""
    home = HOMES.get(module, "")
    own: Any = importlib.import_module(home) if home else None
    listed = dir(own) if home == _TORCH_HPU else getattr(own, "__all__", ())
    below = (each.rpartition(".") for each in HOMES)
    return sorted(
        {
            *listed,
            *gaudi_switches.names_of(_below_torch(module)),
            *(name for parent, _, name in below if parent == module),
        }
    )


def refusal(full_name: str) -> str:
    """Why the hardware is needed for a module or a name, or "" where nothing is known of it."""
    reasons = (reason for name, reason in REFUSED.items() if f"{full_name}.".startswith(f"{name}."))
    return next(reasons, "")


def nearest(module: str, name: str) -> list[str]:
    """The names that are likely to be meant, of other modules with the module."""
    from difflib import get_close_matches

    own = {each.lower(): each for each in names(module)}
    if near := get_close_matches(name.lower(), own, n=2, cutoff=0.7):
        return [own[each] for each in near]
    others = {each.lower(): f"{other}.{each}" for other in HOMES if HOMES[other] != _TORCH_HPU for each in names(other)}
    return [others[each] for each in get_close_matches(name.lower(), others, n=2, cutoff=0.8)]


def _below_torch(module: str) -> str:
    return module.removeprefix(f"{TORCH}.")
