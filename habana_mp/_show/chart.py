"""What pictures of errors have in common: a logarithmic axis, and names that lie on nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

_LETTER = 7.0  # of the text, about
Box = tuple[float, float, float, float]  # left, top, right, bottom


class ErrorAxis:
    """From a power of ten at the bottom of a picture to one at its top, where errors are too that are not finite."""

    def __init__(self, errors: Iterable[float], top: float, bottom: float) -> None:
        powers = [math.log10(error) for error in errors]
        self._low = math.floor(min(powers))
        self._high = max(math.ceil(max(powers)), self._low + 1)
        self._top, self._bottom = top, bottom

    def y(self, error: float) -> float:
        is_shown = 0 < error < math.inf
        part = (math.log10(error) - self._low) / (self._high - self._low) if is_shown else float(error != 0)
        return round(self._bottom - part * (self._bottom - self._top), 1)

    @property
    def marks(self) -> list[dict[str, Any]]:
        return [{"y": self.y(10.0**power), "text": f"1e{power}"} for power in range(self._low, self._high + 1)]


def width_of(text: str) -> float:
    # A letter more: short names have no narrow letters to make up for the wide ones.
    return _LETTER * (len(text) + 1)


def cut(text: str, width: float) -> str:
    """As much of a name as a picture has room for, without the middle: its ends tell places of one model apart."""
    most = max(3, int(width / _LETTER))
    return text if len(text) <= most else f"{text[: most // 3]}…{text[len(text) - most + most // 3 + 1 :]}"


def labels(
    named: Iterable[tuple[float, float, str]], taken: Iterable[Box], width: float, bottom: float
) -> Iterator[dict[str, Any]]:
    """Names near their places, none over another name or over what is taken."""
    boxes = [*taken]
    for x, y, text in named:
        long = width_of(text)
        left = x if x < width / 2 else x - long
        lines = (y + way for way in (-12, 20, -28, 36, -44, 52, -60, 68))
        free = ((left, line - 11, left + long, line + 4) for line in lines if 11 < line < bottom)
        box = next((box for box in free if not any(_overlap(box, other) for other in boxes)), None)
        if box is not None:
            boxes.append(box)
            yield {"x": x, "y": round(box[3] - 4, 1), "anchor": "start" if left == x else "end", "text": text}


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
