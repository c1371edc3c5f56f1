"""What a step changes, put back: modules, optimizers, schedulers and scalers, tensors that it has names for, generators of random numbers."""

from __future__ import annotations

import copy
import random
import sys
import threading
import warnings
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules import module as _nn_module
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import Sampler

from habana_mp._evidence.kept_numbers import Check, kept_array, kept_numbers, size_of
from habana_mp._evidence.reachable import STATEFUL, Reachable, is_array, is_generator

_PutBack = Callable[[], object]
# Of copies of tensors and arrays that are in no module and no optimizer: a data set may be among them.
_MOST_BYTES = 1 << 30
# torch.compile's warning that a compiled module calls hooks twice: a second call of ours does nothing.
_HOOKS_AND_COMPILE = r"Using `torch.compile\(module\)` when there are global hooks"


def wait_for_device() -> None:
    """A step may use streams of its own. They do not wait for what is copied before it and after it, nor are they waited for."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


class KeptState:
    """Notes what the steps can reach by names, at once, and in ``watching`` also modules and optimizers that they find otherwise, when
    these are first called. ``restore`` puts all of it back, and may be called more than once.

    1. Of modules, optimizers, schedulers, scalers and samplers, all attributes, with what lists and dicts in them hold.
    2. Of other objects, closures and globals, the tensors and arrays that were there, and their numbers. What a step counts or collects
       there stays, but for floats in attributes of the program's objects: a loss scale of its own is one, a counter is not.
    3. The gradients that graphs recorded before add to.
    4. The states of generators of random numbers.

    Raises:
        RuntimeError: the steps use an iterator or a queue, whose items cannot be taken a second time. Also where ``watching`` finds
            a module that has no weights yet.
    """

    def __init__(self, *steps: Callable[..., Any]) -> None:
        self._kept: dict[int, Any] = {}  # what is noted, so that no other object gets its id
        self._put_back: list[_PutBack] = [*_generators()]
        self._thread = threading.get_ident()
        self._bytes_left = _MOST_BYTES
        self._check = Check()
        reachable = Reachable(steps)
        for each in reachable.iterators:
            raise RuntimeError(
                f"the step uses {each.name} ({type(each.value).__name__}), whose items can be taken only once, so the step cannot run again"
                " from the same state. Take the items before the step"
            )
        for each in reachable.found:
            self._keep(each.value, each.name)
            if not isinstance(each.value, STATEFUL):
                self._put_back.append(each.put_back)
        self._put_back += (each.put_back for each in reachable.floats)
        for each in reachable.leaves:
            self._keep_tensor(each.value, each.name, copied=self._may_copy(size_of(each.value)))
        wait_for_device()

    @contextmanager
    def watching(self) -> Iterator[None]:
        # An interrupt may leave the hooks: without this object they do nothing.
        own = weakref.ref(self)

        def begins(called: Any, *_: object) -> None:
            if torch.compiler.is_dynamo_compiling():
                return
            kept = own()
            if kept is not None and threading.get_ident() == kept._thread:
                if isinstance(called, torch.nn.Module) and any(map(is_lazy, called.parameters(recurse=False))):
                    raise RuntimeError(
                        f"the step is the first to call a {type(called).__name__}, which makes its weights in its first call. "
                        "Call the model once before"
                    )
                kept._keep(called, type(called).__name__)

        hooks = [_nn_module.register_module_forward_pre_hook(begins), register_optimizer_step_pre_hook(begins)]
        warnings.filterwarnings("ignore", _HOOKS_AND_COMPILE)
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            for entry in [each for each in warnings.filters if getattr(each[1], "pattern", "") == _HOOKS_AND_COMPILE]:
                warnings.filters.remove(entry)  # type: ignore[attr-defined] # a list

    def restore(self, *, by_version: bool = False) -> None:
        """Raises what the first of the things that cannot be put back raises, after all others were.

        ``by_version``, the numbers of what torch has not written to are not read, and stay out of the CPU's caches.
        """
        self._check.by_version = by_version
        errors = []
        wait_for_device()
        with torch.no_grad():
            for put_back in self._put_back:
                try:
                    put_back()
                except Exception as error:  # noqa: BLE001, PERF203 - the others come first
                    errors.append(error)
        wait_for_device()
        if errors:
            raise errors[0]

    def want_gradients(self) -> None:
        """Frozen modules as if they were not, until ``restore``, where nothing that is noted requires a gradient."""
        tensors = [each for each in self._kept.values() if isinstance(each, torch.Tensor)]
        if not any(each.requires_grad for each in tensors):
            for each in tensors:
                if isinstance(each, torch.nn.Parameter) and each.is_floating_point() and not each.is_inference():
                    each.requires_grad_()

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

    def _keep(self, each: Any, name: str) -> None:
        if isinstance(each, torch.nn.Module):
            for path, module in each.named_modules():
                self._keep_module(module, f"{name}.{path}" if path else name)
        elif isinstance(each, Sampler):  # in whose lists a data set may be
            for held in (vars(each), *vars(each).values()):
                if isinstance(held, (dict, list, set, deque)) and self._is_new(held):
                    self._put_back.append(_held_by(held))
        elif isinstance(each, STATEFUL):
            if self._is_new(each):
                self._keep_value(vars(each), name)
        elif is_generator(each):
            if self._is_new(each):
                self._put_back.append(_state_of(each))
        elif isinstance(each, torch.Tensor):
            self._keep_tensor(each, name, copied=self._may_copy(size_of(each)))
        elif self._is_new(each) and each.flags.writeable and not each.dtype.hasobject:
            self._put_back.append(kept_array(each, name, copied=self._may_copy(each.nbytes)))

    def _may_copy(self, size: int) -> bool:
        if size > self._bytes_left:
            return False
        self._bytes_left -= size
        return True

    def _keep_module(self, module: torch.nn.Module, name: str) -> None:
        if not self._is_new(module):
            return
        for key, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            self._keep_tensor(tensor, f"{name}.{key}")
        if not isinstance(module, torch.jit.ScriptModule):  # whose attributes are in C++
            self._keep_value(vars(module), name)

    def _keep_value(self, value: Any, name: str) -> None:
        """Of the state of an object, and what is in it: LBFGS has its history in lists, which it changes in place."""
        if isinstance(value, torch.Tensor):
            self._keep_tensor(value, name)
        elif is_array(value) or isinstance(value, STATEFUL) or is_generator(value):
            self._keep(value, name)
        elif isinstance(value, tuple):
            for each in value:
                self._keep_value(each, name)
        elif isinstance(value, (dict, list, set, deque)) and self._is_new(value):
            self._put_back.append(_held_by(value))
            for each in [*(value.values() if isinstance(value, dict) else value)]:
                self._keep_value(each, name)

    def _keep_tensor(self, tensor: torch.Tensor, name: str, *, copied: bool = True) -> None:
        if is_lazy(tensor) or not self._is_new(tensor):
            return
        has_gradient, requires = tensor.is_leaf or tensor.retains_grad, tensor.requires_grad
        gradient = tensor.grad if has_gradient else None
        parts = kept_numbers(tensor, name, self._check, copied=copied)
        if gradient is not None:
            parts += kept_numbers(gradient, f"the gradient of {name}", self._check)

        def put_back() -> None:
            if has_gradient and tensor.grad is not gradient:
                tensor.grad = None
            for part in parts:
                part.put_back()
            if tensor.is_leaf and tensor.requires_grad != requires:
                tensor.requires_grad_(requires)
            if has_gradient:
                tensor.grad = gradient

        self._put_back.append(put_back)


def _held_by(value: Any) -> _PutBack:
    """Puts back which objects a list or a dict holds, not what is in them."""
    if isinstance(value, dict):
        kind = (
            OrderedDict if isinstance(value, OrderedDict) else dict
        )  # not what a class of the user's has in place of it
        items = [*kind.items(value)]

        def put_back() -> None:
            if not _same(items, kind.items(value)):
                kind.clear(value)
                kind.update(value, items)
    else:
        items = [*value]

        def put_back() -> None:
            if isinstance(value, set):
                if value != {*items}:
                    value.clear()
                    value.update(items)
            elif len(value) != len(items) or any(a is not b for a, b in zip(value, items, strict=True)):
                value.clear()
                value.extend(items)

    return put_back


def _same(items: list[tuple[Any, Any]], others: Any) -> bool:
    return len(items) == len(others) and all(
        key is other and value is another for (key, value), (other, another) in zip(items, others, strict=True)
    )


def _state_of(generator: Any) -> _PutBack:
    """Of torch, of NumPy (its newer and its older kind) and of Python; a module with these functions will do."""
    if hasattr(generator, "getstate"):
        state = generator.getstate()
        return lambda: generator.setstate(state)
    if hasattr(generator, "get_state"):
        state = generator.get_state()
        return lambda: generator.set_state(state)
    bits = generator.bit_generator
    of_bits = copy.deepcopy(bits.state)
    return lambda: setattr(bits, "state", of_bits)


def _generators() -> Iterator[_PutBack]:
    yield _state_of(random)
    yield _state_of(torch.default_generator)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        of_cuda = torch.cuda.get_rng_state_all()
        yield lambda: torch.cuda.set_rng_state_all(of_cuda)
    if (numpy := sys.modules.get("numpy")) is not None:
        yield _state_of(numpy.random)
