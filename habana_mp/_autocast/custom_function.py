"""``custom_fwd`` and ``custom_bwd``: those of torch.amp, which know policies."""  # (F149 to F151)

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from habana_mp._autocast.context import autocast
from habana_mp._autocast.devices import acts_on


def custom_fwd(
    fwd: Callable[..., Any] | None = None, *, device_type: str, cast_inputs: torch.dtype | None = None
) -> Callable[..., Any]:
    """Decorate the forward of a ``torch.autograd.Function``, as ``torch.amp.custom_fwd`` does. ``custom_bwd`` decorates its backward.

    Example:
        >>> class Double(torch.autograd.Function):
        ...     @staticmethod
        ...     @hmp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
        ...     def forward(ctx, x):
        ...         return 2 * x
        ...
        ...     @staticmethod
        ...     @hmp.custom_bwd(device_type="cpu")
        ...     def backward(ctx, grad):
        ...         return 2 * grad
        >>> with hmp.autocast("cpu"):
        ...     Double.apply(x.bfloat16()).dtype
        torch.float32
    """  # (F150)
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)
    if len(acts_on(device_type)) > 1:
        return _custom_fwd_anywhere(fwd, cast_inputs)

    @functools.wraps(fwd)
    def remembering(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_dynamo_compiling():
            ctx._habana_mp_autocast = autocast.current()
        return fwd(ctx, *args, **kwargs)

    made: Callable[..., Any] = torch.amp.custom_fwd(remembering, device_type=device_type, cast_inputs=cast_inputs)
    return made


def _custom_fwd_anywhere(fwd: Callable[..., Any], cast_inputs: torch.dtype | None) -> Callable[..., Any]:
    """For HPU on a machine without one: each call is for the device type of its first tensor."""  # (D28)
    made: dict[str, Callable[..., Any]] = {}

    @functools.wraps(fwd)
    def by_device(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = (value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor))
        device = next((tensor.device.type for tensor in tensors), "cpu")
        if device not in made:
            made[device] = custom_fwd(fwd, device_type=device, cast_inputs=cast_inputs)
        return made[device](ctx, *args, **kwargs)

    return by_device


def custom_bwd(bwd: Callable[..., Any] | None = None, *, device_type: str) -> Callable[..., Any]:
    """Decorate the backward of a ``torch.autograd.Function``, as ``torch.amp.custom_bwd`` does, with policies.

    The backward runs under the policy of its forward, which ``custom_fwd`` decorates.

    Example:
        >>> class Negate(torch.autograd.Function):
        ...     @staticmethod
        ...     @hmp.custom_fwd(device_type="cpu")
        ...     def forward(ctx, x):
        ...         return -x
        ...
        ...     @staticmethod
        ...     @hmp.custom_bwd(device_type="cpu")
        ...     def backward(ctx, grad):
        ...         return -grad
        >>> Negate.apply(x.requires_grad_()).sum().backward()
    """  # (F151)
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)
    torchs: Callable[..., Any] = torch.amp.custom_bwd(bwd, device_type=device_type)

    @functools.wraps(bwd)
    def as_forward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling() or not hasattr(ctx, "_habana_mp_autocast"):
            return torchs(ctx, *args, **kwargs)
        with ctx._habana_mp_autocast:
            return bwd(ctx, *args, **kwargs)

    return as_forward
