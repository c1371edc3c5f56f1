"""``autocast``: a policy in force for a block, on this thread, at torch's dispatcher (F19 to F36, D28 to D33).

What is in force where, and what a region changes, is src/scope/regions.h; the casts are src/autocast/kernel.h.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

import torch

import habana_mp._core as _core
from habana_mp._autocast.regions import region_of
from habana_mp._policy.environment import read_environment
from habana_mp._policy.policy import Policy
from habana_mp._scope import traced
from habana_mp._torch_private import DecoratorContextManager, run_while_traced

if TYPE_CHECKING:
    from typing_extensions import Self


class autocast(DecoratorContextManager):  # noqa: N801 - named as torch.autocast is
    """Run ops in mixed precision inside a block or a decorated function, by a policy: ``torch.autocast`` with lists of your own.

    It acts where every call of an op passes, also those from C++, on this thread alone. Ops of the policy's lists run in its low
    dtype, in float32, or in the widest dtype of their inputs; all others run in the dtypes of their inputs. Left alone as well:
    in-place calls, calls with ``dtype=`` or ``out=``, and calls with a float64 or complex tensor. Weights stay as they are.

    Regions nest, with one another and with ``torch.autocast``: the inner one is in force. One instance may be nested in itself,
    be entered on several threads and decorate recursive functions. ``disable_casts`` switches casts off inside as well.

    Args:
        device_type: "cpu", "cuda", "xpu", "hpu", or the name of a backend of your own: whose tensors are cast. "hpu" on a machine
            without one acts on the tensors of every device.
        dtype: what ops of the lower list run in, ``torch.bfloat16`` or ``torch.float16``, or a name of one ("bf16"); by default the policy's, and for "cpu" and
            "cuda" without a policy what ``torch.get_autocast_dtype`` says. Another one is refused with a warning, and the region is off.
        enabled: False switches autocast off inside.
        cache_enabled: whether casts of weights are kept between calls; on unless the policy says otherwise.
        policy: a ``Policy``, or the name or path of one. By default that of the device type: torch's own lists for "cpu" and "cuda",
            "xpu" and "hpu-autocast" for these; a backend of your own has none.

    Raises:
        ValueError: a device_type that is no string, or a policy that is none.
        TypeError: a dtype that is none, or enabled or cache_enabled that are no bool.
        RuntimeError: a device type that autocast is not for.

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
        else:
            self._region, self._key = region_of(device_type, dtype, enabled, cache_enabled, policy)

    def __repr__(self) -> str:
        device, dtype, enabled, _, policy = getattr(self, "_made_of", ("current", None, True, None, None))
        said = [repr(device), *([] if dtype is None else [str(dtype)]), *([] if enabled else ["enabled=False"])]
        named = policy.name if isinstance(policy, Policy) else policy
        return f"<hmp.autocast {', '.join([*said, *([] if policy is None else [f'policy={named}'])])}>"

    @classmethod
    def current(cls) -> autocast:
        """What is in force on this thread, for another one to be in: a new thread starts with autocast off (F142).

        >>> state = hmp.autocast.current()
        >>> def work():
        ...     with state:
        ...         return model(x)
        """
        state = cls.__new__(cls)
        state._region = _core.current_autocast()
        state._key = traced.remember(state._region)
        return state

    def __reduce__(self) -> tuple[Any, ...]:
        if not hasattr(self, "_made_of"):
            raise TypeError("what hmp.autocast.current() gives belongs to this process: it is not copied or pickled")
        *others, policy = self._made_of
        return functools.partial(autocast, *others, policy=policy), ()

    # A with statement runs C in place of these two, as it does for disable_casts (habana_mp/_scope/disable_casts.py). torch.compile reads them.
    def __enter__(self) -> Self:  # type: ignore[override]
        if torch.compiler.is_dynamo_compiling():
            traced.enter(self._key)
        else:
            _core.enter_autocast(self._region, self)
        return self

    def __exit__(self, *exc: object) -> None:
        if torch.compiler.is_dynamo_compiling():
            traced.leave(self._key)
        else:
            _core.leave_autocast(self)

    def __getattr__(self, name: str) -> Any:
        # What traced code made, and runs on untraced where a graph breaks, has the key alone.
        if name == "_region":
            return traced.region(self.__dict__["_key"])
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def clone(self) -> autocast:
        """What a decorated function is in each time that it runs: a region holds no state of its own (D33)."""
        # torch.compile enters only what it saw made.
        return _Traced(self._key) if torch.compiler.is_dynamo_compiling() else self


@run_while_traced
def _traced_region(
    device_type: str,
    dtype: torch.dtype | str | None,
    enabled: bool,
    cache_enabled: bool | None,
    policy: str | os.PathLike[str] | None,
) -> str:
    """Run by torch.compile while it traces."""
    region, key = region_of(device_type, dtype, enabled, cache_enabled, policy)
    traced.keep(key, region)
    return key


class _Traced(autocast):
    """A region made before, in traced code."""

    def __init__(self, key: str) -> None:
        self._key = key


read_environment()
_core.run_autocast_in_c(autocast.__enter__, autocast.__exit__)
