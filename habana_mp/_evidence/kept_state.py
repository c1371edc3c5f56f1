"""What a step changes, put back: weights, buffers and gradients of the modules that it calls, states of optimizers and of generators."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules import module as _nn_module
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

import habana_mp._core as _core


class KeptState:
    """Notes things before a step changes them, from ``watching`` on; ``restore`` puts all of them back.

    What is put back is what modules and optimizers have; what a step writes elsewhere stays.
    """

    def __init__(self) -> None:
        self._tensors: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._gradients: dict[int, tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]] = {}
        self._optimizers: dict[int, tuple[Optimizer, dict[str, Any]]] = {}
        self._generators = list(_generators())

    @contextmanager
    def watching(self) -> Iterator[None]:
        hooks = [
            _nn_module.register_module_forward_pre_hook(self._module_begins),
            register_optimizer_step_pre_hook(self._optimizer_begins),
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _module_begins(self, module: torch.nn.Module, _inputs: object) -> None:
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is None or id(tensor) in self._tensors or tensor.is_meta:
                continue
            self._tensors[id(tensor)] = tensor, _core.copied_unseen(tensor)
            if tensor.is_leaf and tensor.requires_grad:
                gradient = tensor.grad
                numbers = None if gradient is None else _core.copied_unseen(gradient)
                self._gradients[id(tensor)] = tensor, gradient, numbers

    def _optimizer_begins(self, optimizer: Optimizer, *_arguments: object) -> None:
        if id(optimizer) not in self._optimizers:
            self._optimizers[id(optimizer)] = optimizer, copy.deepcopy(optimizer.state_dict())

    def restore(self) -> None:
        """Also what a run has left of the one before it."""
        for tensor, numbers in self._tensors.values():
            _put_back(tensor, numbers)
        for tensor, gradient, of_gradient in self._gradients.values():
            if gradient is not None and of_gradient is not None:
                _put_back(gradient, of_gradient)
            tensor.grad = gradient
        for optimizer, state in self._optimizers.values():
            optimizer.load_state_dict(copy.deepcopy(state))  # it takes the tensors as they are
        for state, put_back in self._generators:
            put_back(state)


def _put_back(tensor: torch.Tensor, numbers: torch.Tensor) -> None:
    """Only where they differ: a copy would end the graphs that want the tensor as it was."""
    with torch.no_grad():
        if not torch.equal(tensor, numbers):
            tensor.copy_(numbers)


def _generators() -> Iterator[tuple[Any, Callable[[Any], Any]]]:
    yield random.getstate(), random.setstate
    yield torch.get_rng_state(), torch.set_rng_state
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        yield torch.cuda.get_rng_state_all(), torch.cuda.set_rng_state_all
    if (numpy := sys.modules.get("numpy")) is not None:
        yield numpy.random.get_state(), numpy.random.set_state
