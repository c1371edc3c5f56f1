"""A ``Tuned`` as one HTML page that needs no network."""

from __future__ import annotations

import math
from typing import Any

from habana_mp._evidence.tune.shown.text import choice, moved, remarks
from habana_mp._show.chart import ErrorAxis, cut, labels, width_of
from habana_mp._show.html import whole_page
from habana_mp._show.units import time

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 960, 300, 56, 24, 16, 34


def page(found: Any) -> str:
    return whole_page(
        "tuned.html",
        found=found,
        low_dtype=found.policy._core.low_dtype,
        front={point.name for point in found.front},
        in_float32=sum(each.list == "fp32" for each in found.parts),
        picture=_picture(found),
        rows=[
            (each, found.why(each))
            for each in sorted(found.parts, key=lambda each: (not each.part.hidden, -each.part.error))
        ],
        changes=found._moved(),
        moved=moved(found),
        remarks=[*remarks(found), choice(found)],
    )


def _picture(found: Any) -> dict[str, Any]:
    """Errors over times of the points that ran: circles are measured, rings predicted."""
    measured = [point for point in found.points if _is_shown(point.error)]
    predicted = [point.predicted_error for point in measured if _is_shown(point.predicted_error)]
    axis = ErrorAxis([found.budget, *(point.error for point in measured), *predicted], _TOP, _HEIGHT - _BOTTOM)
    fastest, slowest = (f(point.seconds for point in found.points) for f in (min, max))
    first, last = 0.96 * fastest, 1.04 * slowest

    def x(seconds: float) -> float:
        part: float = (seconds - first) / (last - first)
        return round(_LEFT + part * (_WIDTH - _LEFT - _RIGHT), 1)

    named = [
        (x(point.seconds), axis.y(point.error), cut(point.name, _WIDTH / 2 - _LEFT))
        for point in found.points
        if point.policy == found.start or point is found.chosen or point.name in ("all low", "float32")
    ]
    dots = [
        {
            "x": x(point.seconds),
            "y": axis.y(point.error),
            "predicted": axis.y(point.predicted_error) if _is_shown(point.predicted_error) else None,
            "kind": "chosen" if point is found.chosen else "within" if point.error <= found.budget else "above",
            "title": f"{point.name}: error {_error(point.error)}, {time(point.seconds)}",
        }
        for point in found.points
    ]
    budget, right = axis.y(found.budget), _WIDTH - _RIGHT
    name_of_budget = (right - width_of("budget"), budget - 15, float(right), budget)
    return {
        "dots": dots,
        "labels": [*labels(named, [name_of_budget], _WIDTH, _HEIGHT - _BOTTOM)],
        "marks": axis.marks,
        "ticks": [
            {"x": x(first + (last - first) * i / 4), "text": time(first + (last - first) * i / 4)} for i in range(5)
        ],
        "budget": budget,
        "width": _WIDTH,
        "height": _HEIGHT,
        "left": _LEFT,
        "right": right,
        "bottom": _HEIGHT - _BOTTOM,
    }


def _is_shown(error: float | None) -> bool:
    return error is not None and 0 < error < math.inf


def _error(error: float) -> str:
    return f"{error:.2g}" if math.isfinite(error) else "not finite"
