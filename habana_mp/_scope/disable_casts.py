"""``disable_casts``: no casts on this thread for a while."""  # (F96 to F104, D27)

from __future__ import annotations

from typing import Any

import torch

import habana_mp._core as _core
from habana_mp._scope.async_functions import decorated_async
from habana_mp._torch_private import DECORATORS, NoParamDecoratorContextManager, set_autocast_enabled

# The autocast switch of this device type, which nobody casts on, means that casts are off: src/scope/casts_off.h
# explains why.
CASTS_OFF = "ipu"
# That of this one, that a region acts in place of convert.
_IN_PLACE_OF_CONVERT = "xla"


def casts_off() -> bool:
    """Whether casts are off on this thread; what traced code reads (torch.compile guards on it)."""
    return torch.is_autocast_enabled(CASTS_OFF)


def convert_off() -> bool:
    """Whether the casts of ``convert`` are: there, and where ``set_policies`` has put a region in its place."""
    return torch.is_autocast_enabled(CASTS_OFF) or torch.is_autocast_enabled(_IN_PLACE_OF_CONVERT)


class disable_casts(NoParamDecoratorContextManager):  # noqa: N801 - named as torch.no_grad is
    """Switch casts off: a context manager and a decorator, like ``torch.no_grad``.

    Ops inside run in the dtypes of their arguments. ``disable_casts`` casts no tensor when it begins: if a tensor must be float32
    inside, cast it by hand with ``x.float()``. It switches off the casts of ``hmp.convert`` and of ``hmp.autocast``, on the
    calling thread and in a backward pass that starts there. Blocks nest, and one instance may be nested in itself. The end of a block
    restores the state before it, also after an exception. The end of the outermost one also ends all copies in the weight cache. A decorated generator runs its body with casts off. Without a conversion or a
    region it does nothing.

    Example:
        >>> with hmp.disable_casts():
        ...     optimizer.step()
    """  # (F99)

    def __repr__(self) -> str:
        return "<hmp.disable_casts>"

    def __init__(self) -> None:
        self._before: list[bool] = []  # used by traced code only: C keeps what was before per thread

    def __call__(self, orig_func: Any) -> Any:
        DECORATORS.need()
        decorated = decorated_async("disable_casts", self.clone, orig_func)
        return super().__call__(orig_func) if decorated is None else decorated

    def __enter__(self) -> None:
        # A with statement runs C in place of this and of __exit__ (run_disable_casts_in_c): the interpreter looks for signals inside a
        # Python function, and Ctrl-C would leave it halfway. torch.compile reads them, and Python 3.11 runs them where they are called
        # by name.
        if torch.compiler.is_compiling():
            self._before.append(torch.is_autocast_enabled(CASTS_OFF))
            set_autocast_enabled(CASTS_OFF, True)
        else:
            _core.enter_disabled()

    def __exit__(self, *exc: object) -> None:
        if torch.compiler.is_compiling():
            set_autocast_enabled(CASTS_OFF, self._before.pop())
        else:
            _core.exit_disabled()


_core.run_disable_casts_in_c(disable_casts.__enter__, disable_casts.__exit__)
