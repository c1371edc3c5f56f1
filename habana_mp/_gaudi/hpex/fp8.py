"""`...transformer_engine.fp8` and `...transformer_engine.distributed`: regions of 8-bit floats on Gaudi. Here nothing runs in 8 bits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

__all__ = ["activation_checkpointing", "fp8_autocast", "is_fp8_available"]


@contextlib.contextmanager
def fp8_autocast(*_: Any, **__: Any) -> Iterator[None]:
    """A ``with`` statement that changes nothing: there are no 8-bit floats here."""
    yield


@contextlib.contextmanager
def activation_checkpointing(*_: Any, **__: Any) -> Iterator[None]:
    """A ``with`` statement, also a decorator, for what is recomputed in the backward pass. Nothing is scaled here, so nothing is kept for it."""
    yield


def is_fp8_available() -> tuple[bool, str]:
    """True and no reason against it: a script that asks for 8 bits runs, in the dtype of its inputs."""
    return True, ""
