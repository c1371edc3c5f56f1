"""One call of a model by a variant: inference, and a training step."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from harness.device import DEVICE, placed
from subjects.model_zoo import Model, forward

if TYPE_CHECKING:
    from subjects.variants import Variant


def named(model: Model, batch: int, threads: int) -> str:
    return f"{model.name}, batch {batch}, {threads} thread{'s' * (threads > 1)}"


def held(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor


def infer(model: torch.nn.Module, x: torch.Tensor, variant: Variant) -> None:
    with torch.inference_mode(), variant.forward():
        forward(model, x)


def inference_of(
    model: Model, plain: torch.nn.Module, batch: int, variant: Variant
) -> tuple[torch.nn.Module, torch.Tensor]:
    """The module and the input that a variant runs. Variants share the module that ``plain`` is, if they run it in float32."""
    x = placed(model.example(batch)[0])
    return (copy.deepcopy(plain).to(torch.bfloat16), held(x)) if variant.held else (plain, x)


class Trainer:
    """A training step: forward, loss, backward, AdamW as torch runs it by default on CPU, gradients set to None."""

    def __init__(self, model: Model, batch: int, variant: Variant) -> None:
        torch.manual_seed(0)
        with torch.device(DEVICE):
            self.module = model.make().train()
        self.x, self.target = map(placed, model.example(batch))
        if variant.held:
            self.module, self.x, self.target = self.module.to(torch.bfloat16), held(self.x), held(self.target)
        self.loss = model.loss
        self.variant = variant
        self.optimizer = torch.optim.AdamW(self.module.parameters())

    def step(self) -> None:
        with self.variant.forward():
            loss = self.loss(forward(self.module, self.x), self.target)
        loss.backward()
        with self.variant.update():
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
