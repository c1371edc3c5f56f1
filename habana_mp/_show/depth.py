"""A picture of errors through the depth of a model: what each op makes itself, how far it is off in all, and its share of the error of the loss."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from habana_mp._show.html import render
from habana_mp._show.module_path import ModulePath
from habana_mp._show.units import share as percent

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 960, 230, 46, 14, 24
_SMALLEST_DOT, _LARGEST_DOT = 2.5, 9.0
_LETTER = 7.0  # of the text, about
_MOST_NAMED = 3
_NAMED_FROM = 0.05  # of the error
_Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class Place:
    """An op in a module, in the order of the calls. Errors are parts of the size of the result; None where they are not known."""

    name: str
    made: float | None
    total: float | None
    share: float


def place_name(op: str, module: str) -> str:
    return f"{op} in {ModulePath.of(module).name}" if module else op


def depth(places: Sequence[Place]) -> str:
    """Inline SVG, whose colours are those of the page; "" where there is nothing to show."""
    errors = [error for place in places for error in (place.made, place.total) if error and math.isfinite(error)]
    if not errors:
        return ""
    low, high = math.floor(math.log10(min(errors))), math.ceil(math.log10(max(errors)))
    high = max(high, low + 1)

    def y(error: float) -> float:
        part = (math.log10(error) - low) / (high - low) if math.isfinite(error) else 1.0
        return round(_HEIGHT - _BOTTOM - part * (_HEIGHT - _TOP - _BOTTOM), 1)

    step = (_WIDTH - _LEFT - 12) / max(1, len(places) - 1)
    dots: list[dict[str, Any]] = []
    line = []
    for number, place in enumerate(places):
        x = round(_LEFT + number * step, 1)
        if place.total:
            line.append((x, y(place.total)))
        if place.made:
            radius = _SMALLEST_DOT + (_LARGEST_DOT - _SMALLEST_DOT) * math.sqrt(min(1.0, place.share))
            dots.append(
                {
                    "x": x,
                    "y": y(place.made),
                    "r": round(radius, 1),
                    "lost": not math.isfinite(place.made),
                    "title": _title(place),
                    "share": place.share,
                    "name": place.name,
                }
            )
    named = sorted((dot for dot in dots if dot["share"] >= _NAMED_FROM), key=lambda dot: -dot["share"])[:_MOST_NAMED]
    marks = [{"y": y(10.0**power), "text": f"1e{power}"} for power in range(low, high + 1)]
    return render(
        "depth.html",
        dots=dots,
        labels=[*_labels(named, dots)],
        line=line,
        marks=marks,
        first=cut(places[0].name, _WIDTH / 2 - _LEFT),
        last=cut(places[-1].name, _WIDTH / 2 - _LEFT) if len(places) > 1 else "",
        width=_WIDTH,
        height=_HEIGHT,
        left=_LEFT,
        bottom=_HEIGHT - _BOTTOM,
    )


def cut(text: str, width: float) -> str:
    """As much of a name as a picture has room for, without the middle: its ends tell places of one model apart."""
    most = max(3, int(width / _LETTER))
    return text if len(text) <= most else f"{text[: most // 3]}…{text[len(text) - most + most // 3 + 1 :]}"


def _labels(named: Sequence[dict[str, Any]], dots: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Names near their dots, none over another name or over a dot."""
    taken = [(dot["x"] - dot["r"], dot["y"] - dot["r"], dot["x"] + dot["r"], dot["y"] + dot["r"]) for dot in dots]
    for dot in named:
        text = f"{cut(dot['name'], _WIDTH / 2 - _LEFT)} {dot['share'] * 100:.0f} %"
        long = len(text) * _LETTER
        left = dot["x"] if dot["x"] < _WIDTH / 2 else dot["x"] - long
        lines = (dot["y"] + way for way in (-12, 20, -28, 36, -44, 52, -60, 68))
        boxes = ((left, line - 11, left + long, line + 4) for line in lines if 11 < line < _HEIGHT - _BOTTOM)
        box = next((box for box in boxes if not any(_overlap(box, other) for other in taken)), None)
        if box is not None:
            taken.append(box)
            anchor = "start" if left == dot["x"] else "end"
            yield {"x": dot["x"], "y": round(box[3] - 4, 1), "anchor": anchor, "text": text}


def _overlap(a: _Box, b: _Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _title(place: Place) -> str:
    parts = [place.name]
    if place.made is not None:
        parts.append(f"makes {place.made:.2g}")
    if place.total is not None:
        parts.append(f"{place.total:.2g} in all")
    if place.share:
        parts.append(f"{percent(place.share, 1.0)} of the error")
    return ", ".join(parts)
