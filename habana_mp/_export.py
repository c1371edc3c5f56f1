"""What torch.export needs: casts in what it records.

Before the dispatcher comes to autocast, make_fx(pre_dispatch=True) has recorded the op (torch's own autocast regions are recorded as
nodes of the graph). So while it traces, a mode casts the arguments of torch's functions, by the same policy and by the reference of
patched ops; the kernels below then find nothing to cast.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import PreDispatchTorchFunctionMode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from habana_mp import _core, _patched
from habana_mp._disable import casts_off
from habana_mp._patched import CallForm, Rule
from habana_mp._policy import Policy


class _Casts(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        tensor = next((leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)), None)
        policy = None if tensor is None or casts_off() else _policy_for(tensor.device.type)
        form, rule = _rules(Policy(policy)).get(func, _UNLISTED) if policy is not None else _UNLISTED
        if rule is None or form.in_place or _patched._in_place(form, args, kwargs):  # F85
            return func(*args, **kwargs)
        return _patched.call_with_casts(func, form, rule, args, kwargs)


def _policy_for(device: str) -> _core.Policy | None:
    ours = device in ("cpu", "cuda", "xpu", "hpu", torch._C._get_privateuse1_backend_name())
    return _core.autocast_policy(device) if ours else None


_UNLISTED: tuple[CallForm, None] = CallForm(), None


@functools.lru_cache(maxsize=8)
def _rules(policy: Policy) -> dict[Callable[..., Any], tuple[CallForm, Rule | None]]:
    """What a policy lists, by what ``__torch_function__`` is told of an op."""
    from habana_mp._convert import ops, rule_of
    from habana_mp._homes import call_form, told_of

    found: dict[Callable[..., Any], tuple[CallForm, Rule | None]] = {}
    for original, places in ops():
        rule = rule_of(policy, places, original)
        if rule is not None and rule.listed:
            found[told_of(places[0], original)] = call_form(places[0], original), rule
    return found


_mode: Any = PreDispatchTorchFunctionMode
_enter, _leave = _mode.__enter__, _mode.__exit__


def _enter_with_casts(self: Any) -> Any:
    entered = _enter(self)
    self._habana_mp = _Casts()
    self._habana_mp.__enter__()
    return entered


def _leave_with_casts(self: Any, *exc: Any) -> Any:
    if casts := self.__dict__.pop("_habana_mp", None):
        casts.__exit__(*exc)
    return _leave(self, *exc)


def record_casts() -> None:
    """From now on, what is exported has its casts."""
    _mode.__enter__ = _enter_with_casts
    _mode.__exit__ = _leave_with_casts
