"""What a report has measured of the numbers of calls: errors, ranges, and the change of the loss that an error makes.

Takes the dict of ``CastReport.to_dict``. The sums are described in src/report/values.h.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

ERROR = ("squares", "reference_squares", "largest", "reference_largest", "lost")
_RANGE = ("numbers", "largest", "smallest", "over_float16", "under_float16", "under_e4m3", "under_e5m2")
_ABSORBED = ("sums", "lost", "bfloat16", "float16", "e4m3", "e5m2")
_PROJECTED = ("projections", "projected", "projected_low")
_LARGEST = frozenset(["largest", "reference_largest"])  # these do not add up


# Why the error of a call is not measured, by kUnmeasuredNames in src/report/values.h.
UNMEASURED = {
    "random": "it draws random numbers",
    "writes": "it writes to more than its result",
    "reserve": "it needs what its forward pass keeps in reserve",
    "library": "it is not an op of torch, or its kernel is a Python function",
    "collective": "it communicates with other processes",
    "kernel": "it cannot run in the other dtype",
    "tensors": "it has float64, sparse or other special tensors",
    "memory": "too many errors wait for gradients, so its share is not complete",
    "sizes": "the first run gave it other sizes",
    "thread": "another thread than the report's called it",
}


def measured(values: Sequence[Any] | None, unmeasured: dict[str, int]) -> dict[str, Any] | None:
    """Under names what src/bind/bind_report.cpp gives of a row; None where nothing was measured."""
    if values is None:
        return None
    (
        calls,
        ran,
        low,
        value_range,
        absorbed,
        backward_calls,
        backward,
        changes,
        change,
        change_low,
        ran_ns,
        other_ns,
        *projected,
    ) = values
    return {
        "calls": calls,
        "unmeasured": sum(unmeasured.values()),
        "ran": _named(ERROR, ran),
        "low": _named(ERROR, low),
        "range": _named(_RANGE, value_range),
        "absorbed": _named(_ABSORBED, absorbed),
        "ran_seconds": ran_ns / 1e9,
        "other_seconds": other_ns / 1e9,
        "backward_calls": backward_calls,
        "backward": _named(ERROR, backward),
        "changes": changes,
        "change": _finite(change),
        "change_low": _finite(change_low),
        **_named(_PROJECTED, projected),
    }


def _named(names: Sequence[str], values: Sequence[float]) -> dict[str, float]:
    return {name: _finite(value) for name, value in zip(names, values, strict=True)}


def _finite(value: float) -> float:
    """JSON has no infinity: the smallest number of none, and the gradients of a step that overflowed."""
    return value if math.isfinite(value) else 0.0


def added(several: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The values of several rows as one."""
    total: dict[str, Any] = {}
    for values in several:
        for name, value in values.items():
            if isinstance(value, dict):
                total[name] = added([total[name], value]) if name in total else dict(value)
            elif name in _LARGEST:
                total[name] = max(total.get(name, 0.0), value)
            elif name == "smallest":
                total[name] = min(filter(None, (total.get(name), value)), default=0.0)
            else:
                total[name] = total.get(name, 0) + value
    return total


@dataclass(frozen=True)
class LocalError:
    """The error of ops against the same ops in float32, on the same inputs.

    ``relative`` is the root of the sum of squared differences over that of the float32 numbers, ``largest`` the largest difference, and
    ``lost`` how many numbers are not finite that are so in float32. ``float`` of it is ``relative``.

    Example:
        >>> policy = hmp.convert()
        >>> with hmp.report(values=True) as r:
        ...     model(x).sum().backward()
        >>> 0 < float(r.local_error("linear")) < 0.1
        True
    """

    relative: float
    largest: float
    lost: int

    def __float__(self) -> float:
        return self.relative


def local_error(error: dict[str, Any]) -> LocalError:
    whole = error["reference_squares"]
    relative = math.sqrt(error["squares"] / whole) if whole > 0 else (math.inf if error["squares"] > 0 else 0.0)
    return LocalError(relative, error["largest"], error["lost"])


def share(rows: Iterable[dict[str, Any]], chosen: Iterable[dict[str, Any]], *, what_if: bool = False) -> float:
    """What part of all changes the chosen rows make, without signs: errors of two places may cancel by chance."""
    rows = [*with_values(rows)]
    size = change_of(rows, what_if=what_if)
    whole = sum(map(size, rows))
    return sum(map(size, with_values(chosen))) / whole if whole > 0 else 0.0


def saw_backward(rows: Iterable[dict[str, Any]]) -> bool:
    """Whether gradients reached the ops, by a loss or by ``project``."""
    return any(row["values"]["changes"] or row["values"].get("projections") for row in with_values(rows))


def shares_known(rows: Iterable[dict[str, Any]]) -> bool:
    """Whether it is known which op makes the error: not without a backward pass, nor where the loss or its gradients are not finite."""
    rows = [*rows]
    return share(rows, rows) > 0


def change_of(rows: Iterable[dict[str, Any]], *, what_if: bool = False) -> Callable[[dict[str, Any]], float]:
    """The size of the change that a row makes: of the loss if the report has seen a backward pass of one, else of random sums of the outputs."""
    ending = "_low" if what_if else ""
    if any(row["values"]["changes"] for row in with_values(rows)):
        return lambda row: abs(row["values"]["change" + ending])
    return lambda row: math.sqrt(row["values"].get("projected" + ending, 0.0))


class WholeError:
    """How far a loss is off, to first order, or outputs in relation to their size; as it is, and with an edit.

    Errors of a loss have signs, and may cancel; those of outputs add up as errors do that do not depend on each other.
    """

    def __init__(self, report: dict[str, Any]) -> None:
        rows = list(with_values(report["rows"]))
        self._of_loss = any(row["values"]["changes"] for row in rows)
        self._squares = report.get("projected_squares", 0.0)
        self._key = "change" if self._of_loss else "projected"
        self._sum = sum(row["values"].get(self._key, 0.0) for row in rows)

    @property
    def known(self) -> bool:
        return self._of_loss or self._squares > 0

    def now(self) -> float:
        return self._size(self._sum)

    def with_low(self, rows: Iterable[dict[str, Any]]) -> float:
        """With some rows in the low dtype."""
        changed = (row["values"].get(self._key + "_low", 0.0) - row["values"].get(self._key, 0.0) for row in rows)
        return self._size(self._sum + sum(changed))

    def with_left(self, rows: Iterable[tuple[dict[str, Any], float]]) -> float:
        """With some rows in float32, of which a part of the error is left."""
        power = 1 if self._of_loss else 2
        gone = (
            row["values"].get(self._key, 0.0) * (1 - left**power) for row, left in rows if row.get("values") is not None
        )
        return self._size(self._sum - sum(gone))

    def _size(self, total: float) -> float:
        return abs(total) if self._of_loss else math.sqrt(max(total, 0.0) / self._squares)


def why_unmeasured(rows: Iterable[dict[str, Any]], *, backward: bool = False) -> tuple[int, str]:
    """How many calls of some rows were not measured, and why: 0 and an empty text if all were."""
    key = "unmeasured_backward" if backward else "unmeasured"
    reasons = added(row.get(key, {}) for row in rows)
    return sum(reasons.values()), ", ".join(UNMEASURED.get(reason, reason) for reason in reasons)


def with_values(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return (row for row in rows if row.get("values") is not None)
