"""A picture of errors through the depth of a model: what each op makes itself, how far it is off in all, and its share of the error of the loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from habana_mp._show.chart import ErrorAxis, cut, labels
from habana_mp._show.html import render
from habana_mp._show.module_path import ModulePath
from habana_mp._show.units import share as percent

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 960, 230, 46, 14, 24
_SMALLEST_DOT, _LARGEST_DOT = 2.5, 9.0
_MOST_NAMED = 3
_NAMED_FROM = 0.05  # of the error


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
    axis = ErrorAxis(errors, _TOP, _HEIGHT - _BOTTOM)
    step = (_WIDTH - _LEFT - 12) / max(1, len(places) - 1)
    dots: list[dict[str, Any]] = []
    line = []
    for number, place in enumerate(places):
        x = round(_LEFT + number * step, 1)
        if place.total:
            line.append((x, axis.y(place.total)))
        if place.made:
            radius = _SMALLEST_DOT + (_LARGEST_DOT - _SMALLEST_DOT) * math.sqrt(min(1.0, place.share))
            dots.append(
                {
                    "x": x,
                    "y": axis.y(place.made),
                    "r": round(radius, 1),
                    "lost": not math.isfinite(place.made),
                    "title": _title(place),
                    "share": place.share,
                    "name": place.name,
                }
            )
    named = sorted((dot for dot in dots if dot["share"] >= _NAMED_FROM), key=lambda dot: -dot["share"])[:_MOST_NAMED]
    room = _WIDTH / 2 - _LEFT
    names = [(dot["x"], dot["y"], f"{cut(dot['name'], room)} {dot['share'] * 100:.0f} %") for dot in named]
    taken = [(dot["x"] - dot["r"], dot["y"] - dot["r"], dot["x"] + dot["r"], dot["y"] + dot["r"]) for dot in dots]
    return render(
        "depth.html",
        dots=dots,
        labels=[*labels(names, taken, _WIDTH, _HEIGHT - _BOTTOM)],
        line=line,
        marks=axis.marks,
        first=cut(places[0].name, room),
        last=cut(places[-1].name, room) if len(places) > 1 else "",
        width=_WIDTH,
        height=_HEIGHT,
        left=_LEFT,
        bottom=_HEIGHT - _BOTTOM,
    )


def _title(place: Place) -> str:
    parts = [place.name]
    if place.made is not None:
        parts.append(f"makes {place.made:.2g}")
    if place.total is not None:
        parts.append(f"{place.total:.2g} in all")
    if place.share:
        parts.append(f"{percent(place.share, 1.0)} of the error")
    return ", ".join(parts)
