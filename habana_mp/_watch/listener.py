"""Listening to calls from Python: what an exporter (to TensorBoard, say) is made of.

The core keeps the calls of ops as they end (src/report/call_queue.h), so no Python runs while an op does; a listener takes them when it
wants to, once a step for example.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import habana_mp._core as _core
from habana_mp._watch.modules import unwatch_modules, watch_modules

if TYPE_CHECKING:
    from typing_extensions import Self


class Cast(NamedTuple):
    """One argument that a call had cast: dtypes by name, ``size`` of the result in bytes."""

    source: str
    target: str
    cached: bool
    size: int
    seconds: float


class Call(NamedTuple):
    """The call of an op that has ended. The fields mean what those of a row of ``CastReport.to_dict`` do.

    ``nodes`` are the numbers of the first autograd node that the op made behind its casts, and of the first that it did not.
    """

    op: str
    module: str
    front_end: str
    policy: str
    decision: str
    rule: str
    instead_of: str
    seconds: float
    dtypes: list[str]
    runs_in: list[str]
    casts: list[Cast]
    nodes: tuple[int, int]


class CallListener:
    """Hears of every call, on all threads, inside its ``with`` block.

    >>> with CallListener() as listener:
    ...     y = model(x)
    ...     by_op = Counter(call.op for call in listener.take())
    """

    def __init__(self) -> None:
        self._queue = _core.CallQueue()

    def __enter__(self) -> Self:
        watch_modules()
        try:
            self._queue.open()
        except BaseException:
            unwatch_modules()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self._queue.close()
        finally:
            unwatch_modules()

    def take(self) -> list[Call]:
        """The calls that have ended since the last time, in order. Up to 65,536 are kept; ``lost`` counts the others."""
        return [Call(**{**call, "casts": [Cast(**cast) for cast in call["casts"]]}) for call in self._queue.take()]

    @property
    def lost(self) -> int:
        """How many calls were not kept, in all."""
        return self._queue.lost
