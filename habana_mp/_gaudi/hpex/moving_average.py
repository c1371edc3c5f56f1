"""`habana_frameworks.torch.hpex.movingavrg`: the moving average of a model's parameters."""

from __future__ import annotations

import copy
import math

import torch

from habana_mp.hmp import disable_casts

__all__ = ["FusedEMA"]


class FusedEMA:
    """The exponential moving average of a model: ``ema`` is a copy whose tensors follow it.

    A call of ``update`` brings each floating-point tensor of the state dict to ``d * average + (1 - d) * model``, where d rises from 0 to
    ``decay`` with the number of updates x: ``decay * (1 - exp(-x / 2000))``. Other tensors stay as they were copied.

    Args:
        model: what the average begins with.
        decay: what d tends to.
        updates: the number of updates that there have been, for a training that goes on.
    """

    def __init__(self, model: torch.nn.Module, decay: float = 0.9999, updates: int = 0) -> None:
        self.ema = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay
        self.updates = updates

    @torch.no_grad()
    @disable_casts()
    def update(self, model: torch.nn.Module) -> None:
        """Take the tensors of a model into the average."""
        self.updates += 1
        d = self.decay * (1 - math.exp(-self.updates / 2000))
        now = model.state_dict()
        for name, average in self.ema.state_dict().items():
            if average.is_floating_point():
                average.lerp_(now[name].detach().to(average.device, average.dtype), 1 - d)
