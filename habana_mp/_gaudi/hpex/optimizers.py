"""`habana_frameworks.torch.hpex.optimizers`: torch's fused and foreach optimizers under Habana's names and arguments."""  # (F218, F219)

from __future__ import annotations

import math
from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from habana_mp._gaudi.hpex.lamb import FusedLamb
from habana_mp._gaudi.hpex.lars import FusedLars, FusedResourceApplyMomentum
from habana_mp._gaudi.hpex.sparse import SparseAdagrad, SparseSGD
from habana_mp._torch_private import ADAMW

__all__ = [
    "FusedAdagrad",
    "FusedAdamW",
    "FusedLamb",
    "FusedLars",
    "FusedResourceApplyMomentum",
    "FusedSGD",
    "SparseAdagrad",
    "SparseSGD",
]


class FusedSGD(torch.optim.SGD):
    """``torch.optim.SGD(foreach=True)``: the fused one does not take the sharded parameters of FSDP2."""

    def __init__(  # noqa: PLR0917 - Habana's arguments
        self,
        params: ParamsT,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(params, lr, momentum, dampening, weight_decay, nesterov, foreach=True)


class FusedAdagrad(torch.optim.Adagrad):
    """``torch.optim.Adagrad(foreach=True)``."""

    def __init__(  # noqa: PLR0917 - Habana's arguments
        self,
        params: ParamsT,
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
    ) -> None:
        super().__init__(params, lr, lr_decay, weight_decay, initial_accumulator_value, eps, foreach=True)


class FusedAdamW(torch.optim.AdamW):
    """``torch.optim.AdamW(fused=True)``, with a switch for the correction of the moments' bias, and other defaults.

    Args:
        params: tensors, or dicts of parameter groups.
        lr: learning rate.
        betas: decay of the two moments.
        eps: added to the root of the second moment.
        weight_decay: decoupled from the gradient.
        bias_correction: False uses the moments as they are, as the first BERT did. It may differ between groups.
    """

    def __init__(  # noqa: PLR0917 - Habana's arguments
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        bias_correction: bool = True,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, fused=True)
        for group in self.param_groups:
            group.setdefault("bias_correction", bias_correction)
        self.defaults["bias_correction"] = bias_correction

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        for group in self.param_groups:  # the state of a torch.optim.AdamW has none
            group.setdefault("bias_correction", True)

    def _init_group(self, group: dict[str, Any], *lists: Any) -> Any:
        if not group["bias_correction"]:
            for p in group["params"]:
                if p.grad is not None and not self.state[p]:
                    # The correction is 1 - beta**step: at step infinity there is none.
                    self.state[p].update(
                        step=torch.tensor(math.inf, device=p.device),
                        exp_avg=torch.zeros_like(p, memory_format=torch.preserve_format),
                        exp_avg_sq=torch.zeros_like(p, memory_format=torch.preserve_format),
                    )
        return ADAMW.init_group(self, group, *lists)
