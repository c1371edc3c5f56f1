"""LARS, which torch lacks: arXiv 1708.03888, in the form of MLPerf's ResNet-50, which skips norms and biases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from habana_mp.hmp import disable_casts


class FusedResourceApplyMomentum(Optimizer):
    """SGD with momentum whose steps are kept, not the gradients: ``m = momentum * m - lr * (g + weight_decay * w)``, then ``w += m``.

    It differs from ``torch.optim.SGD`` where the learning rate changes: steps that are under way keep the rate that they began with.

    Args:
        params: tensors, or dicts of parameter groups.
        lr: learning rate.
        momentum: how much of the last step goes on.
        weight_decay: added to the gradient, as a part of the weight.

    Raises:
        ValueError: a negative number.
    """

    def __init__(self, params: ParamsT, lr: float = 1e-3, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        for name, value in defaults.items():
            if not value >= 0:
                raise ValueError(f"{name} must be a number, 0 or more, not {value!r}")
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters that have a gradient; gradients stay as they are. Returns what the closure did."""
        loss = loss_of(closure)
        with disable_casts():
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        self._update(p, p.grad, group)
        return loss

    def _update(self, p: torch.Tensor, grad: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[p]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(p, memory_format=torch.preserve_format)
        if group["weight_decay"]:
            grad = grad.add(p, alpha=group["weight_decay"])
        p.add_(state["momentum_buffer"].mul_(group["momentum"]).sub_(grad * group["lr"]))


class FusedLars(Optimizer):
    """Scales the gradient of each tensor by the norms of the tensor and its gradient (LARS), then steps an optimizer.

    The gradient becomes ``eeta * |w| / (|g| + wd * |w| + eps) * (g + wd * w)``, with the weight decay wd of the optimizer's group; where one
    of the norms is 0 it is ``g + wd * w``. Tensors that the mask skips take the optimizer's step without scale and weight decay. The optimizer is the
    same one: its groups, its state and its state dict are those of this one.

    Args:
        optimizer: the one that steps, ``FusedResourceApplyMomentum`` or another.
        skip_mask: for each parameter, in the order of the groups, whether it is scaled, and not skipped: False for norms and biases.
        eeta: the coefficient.
        eps: added to the divisor.

    Raises:
        ValueError: the mask has not one entry for each parameter; from ``step``, too.
    """

    def __init__(self, optimizer: Optimizer, skip_mask: Sequence[bool], eeta: float = 0.001, eps: float = 1e-8) -> None:
        self.optimizer = optimizer
        self.skip_mask = list(skip_mask)
        self.eeta, self.eps = eeta, eps
        self._check()
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self._share()

    def _check(self) -> None:
        count = sum(len(group["params"]) for group in self.optimizer.param_groups)
        if len(self.skip_mask) != count:
            raise ValueError(
                f"skip_mask must have one entry for each parameter: {count} of the optimizer, not {len(self.skip_mask)}"
            )

    def _share(self) -> None:
        self.param_groups, self.state = self.optimizer.param_groups, self.optimizer.state

    def __getstate__(self) -> dict[str, Any]:
        own = {name: vars(self)[name] for name in ("optimizer", "skip_mask", "eeta", "eps")}
        return {**super().__getstate__(), **own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._share()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters that have a gradient; gradients stay as they are. Returns what the closure did."""
        loss = loss_of(closure)
        self._check()  # the optimizer may have got a group since
        self._share()
        mask = iter(self.skip_mask)
        given: list[tuple[torch.Tensor, torch.Tensor]] = []
        decays = [group.get("weight_decay", 0.0) for group in self.param_groups]
        try:
            with disable_casts():
                for group, decay in zip(self.param_groups, decays, strict=True):
                    group["weight_decay"] = 0.0
                    for p in group["params"]:
                        if next(mask) and p.grad is not None:
                            given.append((p, p.grad))
                            p.grad = self._scaled(p, p.grad, decay)
            self.optimizer.step()
        finally:
            for p, grad in given:
                p.grad = grad
            for group, decay in zip(self.param_groups, decays, strict=True):
                group["weight_decay"] = decay
        return loss

    def _scaled(self, p: torch.Tensor, grad: torch.Tensor, decay: float) -> torch.Tensor:
        weight_norm, grad_norm = p.norm(), grad.norm()
        ratio = self.eeta * weight_norm / (grad_norm + decay * weight_norm + self.eps)
        ratio = torch.where((weight_norm > 0) & (grad_norm > 0), ratio, 1.0)
        return grad.add(p, alpha=decay) * ratio.to(grad.dtype)

    def state_dict(self) -> dict[str, Any]:
        """That of the optimizer."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load it into the optimizer."""
        self.optimizer.load_state_dict(state_dict)
        self._share()


def loss_of(closure: Callable[[], Any] | None) -> Any:
    """What the closure of a step did, which is run with gradients."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()
