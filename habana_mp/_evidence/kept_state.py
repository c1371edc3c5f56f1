"""What a step changes, put back: modules with their weights, buffers and gradients, optimizers, schedulers, generators of random numbers."""

from __future__ import annotations

import copy
import random
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules import module as _nn_module
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

import habana_mp._core as _core
from habana_mp._evidence.reachable import reachable

_PutBack = Callable[[], object]


class KeptState:
    """Notes what the steps can reach by names, at once, and in ``watching`` also modules and optimizers that they find otherwise, when
    these are first called. ``restore`` puts all of it back, and may be called more than once.

    What lies elsewhere stays as the steps leave it: files, iterators, tensors that are in no module.
    """

    def __init__(self, *steps: Callable[..., Any]) -> None:
        self._kept: dict[int, Any] = {}  # what is noted, so that no other object gets its id
        self._put_back: list[_PutBack] = [*_generators()]
        self._thread = threading.get_ident()
        for each in reachable(steps):
            self._keep(each)

    @contextmanager
    def watching(self) -> Iterator[None]:
        # An interrupt may leave the hooks: without this object they do nothing.
        own = weakref.ref(self)

        def begins(called: Any, *_: object) -> None:
            if torch.compiler.is_dynamo_compiling():
                return
            kept = own()
            if kept is not None and threading.get_ident() == kept._thread:
                kept._keep(called)

        hooks = [_nn_module.register_module_forward_pre_hook(begins), register_optimizer_step_pre_hook(begins)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def restore(self) -> None:
        """Raises what the first of the things that cannot be put back raises, after all others were."""
        errors = []
        with torch.no_grad():
            for put_back in self._put_back:
                try:
                    put_back()
                except Exception as error:  # noqa: BLE001, PERF203 - the others come first
                    errors.append(error)
        if errors:
            raise errors[0]

    def gradients(self) -> list[torch.Tensor]:
        """Of the tensors that are noted, in the order in which they were."""
        tensors = (each for each in self._kept.values() if isinstance(each, torch.Tensor) and each.is_leaf)
        return [each.grad for each in tensors if each.grad is not None]

    def clear_gradients(self) -> None:
        """Of the same tensors; ``restore`` puts back those that they had."""
        for each in self._kept.values():
            if isinstance(each, torch.Tensor) and each.is_leaf and each.grad is not None:
                each.grad = None

    def _is_new(self, each: object) -> bool:
        if id(each) in self._kept:
            return False
        self._kept[id(each)] = each
        return True

    def _keep(self, each: Any) -> None:
        if isinstance(each, torch.nn.Module):
            for module in each.modules():
                self._keep_module(module)
        elif isinstance(each, Optimizer):
            self._keep_optimizer(each)
        elif isinstance(each, torch.Generator) and self._is_new(each):
            state = each.get_state()
            self._put_back.append(lambda: each.set_state(state))
        elif self._is_new(each):
            values = copy.deepcopy(each.state_dict())
            self._put_back.append(lambda: each.load_state_dict(copy.deepcopy(values)))

    def _keep_module(self, module: torch.nn.Module) -> None:
        if not self._is_new(module):
            return
        training = module.training
        mappings: list[Any] = [module._parameters, module._buffers]
        own = [(each, dict(each)) for each in mappings]

        def put_back() -> None:
            module.training = training
            for mapping, values in own:
                if mapping.keys() != values.keys() or any(mapping[name] is not values[name] for name in values):
                    mapping.clear()
                    mapping.update(values)

        self._put_back.append(put_back)
        for _, values in own:
            for tensor in values.values():
                self._keep_tensor(tensor)

    def _keep_optimizer(self, optimizer: Optimizer) -> None:
        if not self._is_new(optimizer):
            return
        groups = [
            (group, {key: value for key, value in group.items() if key != "params"}) for group in optimizer.param_groups
        ]
        states = {parameter: (state, dict(state)) for parameter, state in optimizer.state.items()}
        for tensor in (parameter for group in optimizer.param_groups for parameter in group["params"]):
            self._keep_tensor(tensor)
        for values in (*(values for _, values in groups), *(values for _, values in states.values())):
            for value in values.values():
                self._keep_value(value)

        def put_back() -> None:
            for group, values in groups:
                group.update(values)
            for parameter in [*optimizer.state]:
                if parameter not in states:
                    del optimizer.state[parameter]
            for parameter, (state, values) in states.items():
                optimizer.state[parameter] = state
                if isinstance(state, dict):
                    state.clear()
                    state.update(values)

        self._put_back.append(put_back)

    def _keep_value(self, value: Any) -> None:
        """Of the state of an optimizer: LBFGS has its history in lists, which it changes in place."""
        self._keep_tensor(value)
        if isinstance(value, tuple):
            for each in value:
                self._keep_value(each)
        elif isinstance(value, (list, dict)) and self._is_new(value):
            kept = copy.copy(value)
            for each in kept.values() if isinstance(kept, dict) else kept:
                self._keep_value(each)

            def put_back() -> None:
                value.clear()
                (value.update if isinstance(value, dict) else value.extend)(kept)

            self._put_back.append(put_back)

    def _keep_tensor(self, tensor: Any) -> None:
        if not isinstance(tensor, torch.Tensor) or is_lazy(tensor) or not self._is_new(tensor):
            return
        gradient, requires = tensor.grad if tensor.is_leaf else None, tensor.requires_grad
        numbers = _Numbers(tensor)
        of_gradient = None if gradient is None else _Numbers(gradient)

        def put_back() -> None:
            leaf = tensor.is_leaf
            if leaf and tensor.grad is not gradient:
                tensor.grad = None
            numbers.put_back()
            if of_gradient is not None:
                of_gradient.put_back()
            if leaf:
                if tensor.requires_grad != requires:
                    tensor.requires_grad_(requires)
                tensor.grad = gradient

        self._put_back.append(put_back)


class _Numbers:
    """Of a tensor. Those that cannot be read (sparse ones, subclasses) are not put back."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._hash = _core.hash_of_numbers(tensor) if tensor.layout == torch.strided else 0
        self._copy = _core.copied_unseen(tensor) if self._hash else None

    def put_back(self) -> None:
        """Where they are the same, nothing is written: that would end the graphs that want the tensor as it was."""
        tensor, own = self._tensor, self._copy
        if own is None or (tensor.dtype == own.dtype and _core.hash_of_numbers(tensor) == self._hash):
            return
        if tensor.dtype != own.dtype or tensor.shape != own.shape:
            tensor.data = own.clone()
        elif tensor.is_inference():
            with torch.inference_mode():
                tensor.copy_(own)
        else:
            tensor.copy_(own)


def _generators() -> Iterator[_PutBack]:
    state, of_torch = random.getstate(), torch.get_rng_state()
    yield lambda: random.setstate(state)
    yield lambda: torch.set_rng_state(of_torch)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        of_cuda = torch.cuda.get_rng_state_all()
        yield lambda: torch.cuda.set_rng_state_all(of_cuda)
    if (numpy := sys.modules.get("numpy")) is not None:
        of_numpy = numpy.random.get_state()
        yield lambda: numpy.random.set_state(of_numpy)
