"""``autocast``: a policy in force for a block, on this thread, at torch's dispatcher.

What is in force where, and what a region changes, is src/scope/regions.h; the casts are src/autocast/kernel.cpp.
"""  # (F19 to F36, D28 to D33)

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

import torch

import habana_mp._core as _core
from habana_mp._autocast.devices import devices
from habana_mp._autocast.regions import region_of
from habana_mp._policy.environment import read_environment
from habana_mp._policy.policy import Policy
from habana_mp._scope import traced
from habana_mp._scope.async_functions import decorated_async
from habana_mp._torch_private import DecoratorContextManager, run_while_traced

if TYPE_CHECKING:
    from typing_extensions import Self


class autocast(DecoratorContextManager):  # noqa: N801 - named as torch.autocast is
    """Run ops in mixed precision inside a block or a decorated function: ``torch.autocast`` with your own lists.

    A region acts on its own thread, at torch's dispatcher, so it also casts for ops that C++ code calls. Ops of the policy's lists run in
    its low dtype, in float32, or in the widest dtype of their inputs. All other ops follow the ``rest`` of the policy. A region does not
    change calls with ``dtype=`` or ``out=``, calls with a float64 or complex tensor, or calls in place, but for ops that refuse tensors
    of different dtypes (``index_add_``): there the others take the dtype of the one that is written to. Weights keep their dtype.

    Regions nest, also with ``torch.autocast``, and the inner one is in force. One instance may be nested in itself, entered on several
    threads, and used to decorate recursive functions. A decorated coroutine function is inside while it runs, and outside while it
    waits. ``disable_casts`` switches the casts of a region off, too.

    Args:
        device_type: the type of the tensors to cast: "cpu", "cuda", "xpu", "hpu", or the name of your own backend. On a machine without
            an HPU, "hpu" casts the tensors of every device. Where CUDA is not available, "cuda" triggers a warning and casts nothing.
        dtype: the dtype for ops of the lower list: ``torch.bfloat16`` or ``torch.float16``, or its name ("bf16"). The default is that of
            the policy; for "cpu" and "cuda" without a policy it is ``torch.get_autocast_dtype(device_type)``. Another dtype triggers a
            warning, and the region casts nothing.
        enabled: False switches autocast off inside.
        cache_enabled: False keeps no casts of weights between calls. True and the default keep them, unless the policy has
            ``cache = false``.
        policy: a ``Policy``, or its name or path. The default depends on the device type: torch's own lists for "cpu" and "cuda", the
            presets "xpu" and "hpu-autocast" for these two. Your own backend has no default.

    Raises:
        ValueError: device_type is not a string, or the policy does not exist or has an error in it.
        TypeError: dtype is not a dtype, or enabled or cache_enabled is not a bool.
        OSError: the policy cannot be read.
        RuntimeError: autocast does not support the device type, or the GPU has no bfloat16.

    Example:
        >>> with hmp.autocast("cpu", policy="hpu-autocast"):
        ...     loss = loss_function(model(x), y)

    See Also:
        convert, disable_casts, set_policies, Policy
    """

    def __init__(
        self,
        device_type: str,
        dtype: torch.dtype | str | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
        *,
        policy: Policy | str | os.PathLike[str] | None = None,
    ) -> None:
        self._made_of: tuple[Any, ...] = device_type, dtype, enabled, cache_enabled, policy
        if torch.compiler.is_dynamo_compiling():
            named = policy._text if isinstance(policy, Policy) else policy
            self._key = _traced_region(device_type, dtype, enabled, cache_enabled, named)
            self._idle: list[bool] = []
        else:
            self._region, self._key = region_of(device_type, dtype, enabled, cache_enabled, policy)

    def __repr__(self) -> str:
        device, dtype, enabled, _, policy = getattr(self, "_made_of", ("current", None, True, None, None))
        said = [repr(device), *([] if dtype is None else [str(dtype)]), *([] if enabled else ["enabled=False"])]
        named = policy.name if isinstance(policy, Policy) else policy
        return f"<hmp.autocast {', '.join([*said, *([] if policy is None else [f'policy={named}'])])}>"

    @classmethod
    def current(cls) -> autocast:
        """Return what is in force on this thread, as a context manager for another thread.

        A new thread starts with autocast off.

        Example:
            >>> state = hmp.autocast.current()
            >>> def work():
            ...     with state:
            ...         return model(x)
        """  # (F142)
        state = cls.__new__(cls)
        state._region = _core.current_autocast()
        state._key = traced.remember(state._region)
        return state

    def __reduce__(self) -> tuple[Any, ...]:
        if not hasattr(self, "_made_of"):
            raise TypeError(
                "the result of hmp.autocast.current() belongs to this process and cannot be copied or pickled"
            )
        *others, policy = self._made_of
        return functools.partial(autocast, *others, policy=policy), ()

    def __call__(self, func: Any) -> Any:
        decorated = decorated_async("hmp.autocast", self.clone, func)
        return super().__call__(func) if decorated is None else decorated

    def __enter__(self) -> Self:  # type: ignore[override]
        # A with statement runs C in place of this and of __exit__, as it does for disable_casts (habana_mp/_scope/disable_casts.py).
        # torch.compile reads them.
        if torch.compiler.is_dynamo_compiling():
            # A graph has no nodes for what changes nothing.
            self._idle.append(_is_idle(self._key))
            if not self._idle[-1]:
                traced.enter(self._key)
        else:
            _core.enter_autocast(self._region, self)
        return self

    def __exit__(self, *exc: object) -> None:
        if torch.compiler.is_dynamo_compiling():
            if not self._idle.pop():
                traced.leave(self._key)
        else:
            _core.leave_autocast(self)

    def __getattr__(self, name: str) -> Any:
        # What traced code made, and runs on untraced where a graph breaks, has the key alone.
        if name == "_region":
            return traced.region(self.__dict__["_key"])
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def clone(self) -> autocast:
        """What a decorated function is in each time that it runs: a region holds no state of its own."""  # (D33)
        # torch.compile enters only what it saw made.
        return _Traced(self._key) if torch.compiler.is_dynamo_compiling() else self


@run_while_traced
def _traced_region(*made_of: Any) -> str:
    region, key = region_of(*made_of)
    traced.keep(key, region)
    return key


@run_while_traced
def _is_idle(key: str) -> bool:
    """Whether a region switches autocast off where it is off. Graphs are guarded on that."""
    is_on = any(map(torch.is_autocast_enabled, devices())) or bool(_core.autocast_ruled())
    return not is_on and not traced.region(key).policies


class _Traced(autocast):
    """A region made before, in traced code."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._idle = []


read_environment()
_core.run_autocast_in_c(autocast.__enter__, autocast.__exit__)
