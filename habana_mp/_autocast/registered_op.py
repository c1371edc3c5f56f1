"""``register_op``: functions that are not torch's, named in lists as ops are."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch

import habana_mp._core as _core
from habana_mp._autocast.devices import devices
from habana_mp._convert.call_form import python_form
from habana_mp._convert.patched_op import PatchedMethod, PatchedOp
from habana_mp._convert.rule import Rule, listed_rule
from habana_mp._policy import names
from habana_mp._policy.policy import Policy
from habana_mp._scope import in_force
from habana_mp._scope.disable_casts import casts_off, convert_off
from habana_mp._torch_private import run_while_traced


def register_op(function: Callable[..., Any] | None = None, *, name: str | None = None) -> Callable[..., Any]:
    """Register your own function as an op that lists can name. Use it as a decorator, or call it and use the result in place of the function.

    If the lower or the fp32 list names the op, its tensors are cast like those of torch's ops, under ``convert`` and in regions of
    ``autocast``, and the ops that it calls are not cast again. In the promote list its
    tensors go to their widest dtype, and the ops inside follow their own rules. If no list names it, it runs as written, and the ops inside follow
    their own rules. The report, the log and ``explain`` use its name. For a function of a library, assign the result:
    ``flash_attn.flash_attn_func = hmp.register_op(flash_attn.flash_attn_func)``. A module that imported the function earlier keeps the
    original.

    Args:
        function: a Python function, or an op of ``torch.library`` such as ``torch.ops.mylib.attention``.
        name: its name in lists. The default is ``function.__name__``. Functions of the same name share a rule.

    Returns:
        A callable with the same signature, which also works as a method.

    Raises:
        TypeError: ``function`` is not callable, or it has no ``__name__`` and ``name`` is not given.
        ValueError: torch has an op of this name, or the name has characters other than letters, digits and _.

    Example:
        >>> @hmp.register_op
        ... def fused_mlp(x, w1, w2):
        ...     return torch.relu(x @ w1) @ w2
        >>> policy = hmp.Policy.load("hmp").with_edits("+fused_mlp:lower")
        >>> policy.rule("fused_mlp").action
        'lower'
    """  # (D19)
    if function is None:
        return functools.partial(register_op, name=name)
    if isinstance(function, RegisteredOp):
        function = function.original
    if isinstance(function, (staticmethod, classmethod)):
        raise TypeError(f"write @register_op below @{type(function).__name__}, next to the function")
    if not callable(function) or isinstance(function, type):
        raise TypeError(f"register_op takes a function, not {function!r}")
    own = getattr(function, "__name__", None) if name is None else name
    if not isinstance(own, str):
        raise TypeError(f"{function!r} has no __name__: pass a string as name=")
    if isinstance(function, PatchedOp) or own in names.torch_names():
        raise ValueError(f"torch has an op {own!r}, so lists can name it already. Pass another name as name=")
    if not (own.isidentifier() and own.isascii()):
        raise ValueError(f"{own!r} is not a name of an op. Accepted are letters, digits and _")
    names.registered.add(own)
    return RegisteredOp(function, own)


class RegisteredOp:
    """What ``register_op`` returns: it calls ``original`` by the rule that the policy in force here has for its name."""

    def __init__(self, original: Callable[..., Any], name: str) -> None:
        functools.update_wrapper(self, original)
        self.original = original
        self.listed_name = name
        self._form = python_form(original)
        self._traced = self._new_op()
        # Kept for good: C++ names the last op that cast by them.
        self._by_policy: dict[tuple[Policy, bool], PatchedOp] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            rule, of_region = _rule_while_traced(self.listed_name, _device(args, kwargs))
            if rule is None or (casts_off() if of_region else convert_off()):
                return self.original(*args, **kwargs)
            return self._traced._call_by(Rule(*rule), args, kwargs)
        policy, of_region = _policy_here(_device(args, kwargs))
        if policy is None:
            return self.original(*args, **kwargs)
        op = self._by_policy.get((policy, of_region)) or self._op_for(policy, of_region)
        return op(*args, **kwargs)

    def _op_for(self, policy: Policy, of_region: bool) -> PatchedOp:
        op = self._new_op()
        if of_region:
            op.region_policy = policy._core
        op.rule = listed_rule(policy, policy._core.resolve(self.listed_name))
        return self._by_policy.setdefault((policy, of_region), op)

    def _new_op(self) -> PatchedOp:
        return PatchedMethod(self.original, self.original, self.listed_name, **self._form)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<hmp.register_op of {self.original!r}>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        own = self.__dict__.get("__qualname__")  # by name, as functions are; a partial or an object has none
        return (
            own if isinstance(own, str) else (functools.partial(register_op, name=self.listed_name), (self.original,))
        )

    def __copy__(self, _: Any = None) -> RegisteredOp:
        return self

    __deepcopy__ = __copy__


def _device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The device type of the first tensor; "" without one."""
    for value in (*args, *kwargs.values()):
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, torch.Tensor):
                return item.device.type
    return ""


def _policy_here(device: str) -> tuple[Policy | None, bool]:
    """The policy that rules calls on this device type on this thread, and whether it is that of a region."""
    found = _core.autocast_policy(device) if device in devices() else None
    return (Policy(found), True) if found is not None else (in_force.policy, False)


@run_while_traced
def _rule_while_traced(name: str, device: str) -> tuple[tuple[int, int, bool, str] | None, bool]:
    """The rule as a plain tuple: Dynamo before torch 2.12 cannot unpack a Rule."""
    policy, of_region = _policy_here(device)
    rule = None if policy is None else listed_rule(policy, policy._core.resolve(name))
    return (None if rule is None else (*rule,)), of_region
