"""LAMB, which torch lacks: Algorithm 2 of arXiv 1904.00962, by torch's foreach functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from habana_mp._gaudi.hpex.lars import loss_of
from habana_mp._torch_private import FOREACH
from habana_mp.hmp import disable_casts

_MOMENTS = ("exp_avg", "exp_avg_sq")


class FusedLamb(Optimizer):
    """Adam whose step for each tensor is as long as the tensor's own norm says (LAMB), with gradients clipped by their global norm.

    The update of a tensor is ``lr * |w| / |u| * u``, where ``u`` is Adam's update plus ``weight_decay * w``; where one of the norms is 0 it is
    ``lr * u``. Moments and the arithmetic are float32 (float64 for float64 parameters), also for parameters of lower precision.

    Args:
        params: tensors, or dicts of parameter groups.
        lr: learning rate.
        bias_correction: whether the moments are corrected for their start at 0.
        betas: decay of the two moments.
        eps: added to the root of the second moment.
        weight_decay: part of the update.
        max_grad_norm: what the norm of the gradients of all groups together is brought down to; 0 or None switches it off.

    Raises:
        ValueError: a number out of its range.
        RuntimeError: from ``step``, for a sparse gradient.
    """

    def __init__(  # noqa: PLR0917 - Habana's arguments
        self,
        params: ParamsT,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        max_grad_norm: float | None = 1.0,
    ) -> None:
        for name, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay), ("max_grad_norm", max_grad_norm)):
            if not (value or 0) >= 0:
                raise ValueError(f"{name} must be a number, 0 or more, not {value!r}")
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be two numbers, 0 or more and below 1, not {betas!r}")
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "max_grad_norm": max_grad_norm,  # one for all groups; here it is copied and pickled with the rest
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters that have a gradient; gradients stay as they are. Returns what the closure did."""
        loss = loss_of(closure)
        with disable_casts():
            groups = [(group, [p for p in group["params"] if p.grad is not None]) for group in self.param_groups]
            scale = self._scale([p.grad for _, params in groups for p in params])
            for group, params in groups:
                if params:
                    self._update(group, params, scale)
        return loss

    def _scale(self, grads: list[torch.Tensor]) -> torch.Tensor | None:
        if any(grad.is_sparse for grad in grads):
            raise RuntimeError("FusedLamb does not take sparse gradients: make the embedding with sparse=False")
        max_norm = self.defaults["max_grad_norm"]
        if not grads or not max_norm:
            return None
        return torch.clamp(max_norm / get_total_norm(_wide(grads)), max=1.0)

    def _update(self, group: dict[str, Any], params: list[torch.Tensor], scale: torch.Tensor | None) -> None:
        weights = _wide(params)
        grads = _wide([p.grad for p in params if p.grad is not None])
        if scale is not None:
            grads = [grad * scale.to(grad.device) for grad in grads]
        steps, averages, squares = self._moments(params, weights)
        beta1, beta2 = group["betas"]
        FOREACH.lerp_(averages, grads, 1 - beta1)
        FOREACH.mul_(squares, beta2)
        FOREACH.addcmul_(squares, grads, grads, 1 - beta2)
        roots = FOREACH.sqrt(squares)
        updates: tuple[torch.Tensor, ...] | list[torch.Tensor] = averages
        if group["bias_correction"]:
            FOREACH.div_(roots, [(1 - beta2**step) ** 0.5 for step in steps])
            updates = FOREACH.div(averages, [1 - beta1**step for step in steps])
        FOREACH.add_(roots, group["eps"])
        updates = FOREACH.div(updates, roots)
        if group["weight_decay"]:
            FOREACH.add_(updates, weights, alpha=group["weight_decay"])
        lengths = zip(FOREACH.norm(weights), FOREACH.norm(updates), strict=True)
        FOREACH.mul_(updates, [torch.where((w > 0) & (u > 0), w / u, 1.0) for w, u in lengths])
        FOREACH.add_(params, updates, alpha=-float(group["lr"]))

    def _moments(
        self, params: list[torch.Tensor], weights: list[torch.Tensor]
    ) -> tuple[list[int], list[torch.Tensor], list[torch.Tensor]]:
        for p, weight in zip(params, weights, strict=True):
            state = self.state[p]
            if not state:
                state["step"] = 0
                for name in _MOMENTS:
                    state[name] = torch.zeros_like(weight, memory_format=torch.preserve_format)
            state["step"] += 1
        states = [self.state[p] for p in params]
        return [state["step"] for state in states], *([state[name] for state in states] for name in _MOMENTS)  # type: ignore[return-value]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As every optimizer of torch does; moments stay float32."""
        loaded = [state_dict]
        hook = self.register_load_state_dict_pre_hook(
            lambda _, last: loaded.append(last)
        )  # the last: what the others made of it
        try:
            super().load_state_dict(state_dict)
        finally:
            hook.remove()
        # torch has rounded them to the dtype of their parameters.
        saved = [number for group in loaded[-1]["param_groups"] for number in group["params"]]
        own = [p for group in self.param_groups for p in group["params"]]
        for number, p in zip(saved, own, strict=True):
            state = self.state.get(p, {})
            for name, moment in loaded[-1]["state"].get(number, {}).items():
                wide = torch.float64 if p.dtype == torch.float64 else torch.float32
                if name in _MOMENTS and name in state and state[name].dtype != wide:
                    state[name] = moment.to(p.device, wide, copy=True)


def _wide(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor if tensor.dtype == torch.float64 else tensor.float() for tensor in tensors]
