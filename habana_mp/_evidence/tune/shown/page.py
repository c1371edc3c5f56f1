"""A ``Tuned`` as one HTML page that needs no network."""

from __future__ import annotations

import math
from typing import Any

from habana_mp._evidence.tune.shown.text import choice, moved, remarks
from habana_mp._show.depth import cut
from habana_mp._show.html import whole_page
from habana_mp._show.units import time

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 960, 300, 56, 24, 16, 34
_LETTER = 7.0  # of a label, about


def page(found: Any) -> str:
    """Of a ``Tuned``."""
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
    errors = [point.error for point in measured] + [found.budget]
    errors += [
        point.predicted_error for point in measured if point.predicted_error and _is_shown(point.predicted_error)
    ]
    low, high = math.floor(math.log10(min(errors))), math.ceil(math.log10(max(errors)))
    high = max(high, low + 1)
    fastest, slowest = (f(point.seconds for point in found.points) for f in (min, max))
    first, last = 0.96 * fastest, 1.04 * slowest

    def x(seconds: float) -> float:
        part: float = (seconds - first) / (last - first)
        return round(_LEFT + part * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(error: float) -> float:
        part: float = (math.log10(error) - low) / (high - low) if _is_shown(error) else float(error > 0)
        return round(_HEIGHT - _BOTTOM - part * (_HEIGHT - _TOP - _BOTTOM), 1)

    named = [
        point
        for point in found.points
        if point.policy == found.start or point is found.chosen or point.name in ("all low", "float32")
    ]
    dots = [
        {
            "x": x(point.seconds),
            "y": y(point.error),
            "predicted": y(point.predicted_error)
            if point.predicted_error and _is_shown(point.predicted_error)
            else None,
            "kind": "chosen" if point is found.chosen else "within" if point.error <= found.budget else "above",
            "title": f"{point.name}: error {_error(point.error)}, {time(point.seconds)}",
        }
        for point in found.points
    ]
    return {
        "dots": dots,
        "labels": _labels(named, x, y, found.budget),
        "marks": [{"y": y(10.0**power), "text": f"1e{power}"} for power in range(low, high + 1)],
        "ticks": [
            {"x": x(first + (last - first) * i / 4), "text": time(first + (last - first) * i / 4)} for i in range(5)
        ],
        "budget": y(found.budget),
        "width": _WIDTH,
        "height": _HEIGHT,
        "left": _LEFT,
        "right": _WIDTH - _RIGHT,
        "bottom": _HEIGHT - _BOTTOM,
    }


def _is_shown(error: float) -> bool:
    return 0 < error < math.inf


def _error(error: float) -> str:
    return f"{error:.2g}" if math.isfinite(error) else "not finite"


def _labels(points: list[Any], x: Any, y: Any, budget: float) -> list[dict[str, Any]]:
    """The names of points beside them, where they cover neither one that is named already nor the name of the line of the budget."""
    found: list[dict[str, Any]] = [
        {"y": y(budget) - 4, "from": _WIDTH - _RIGHT - _LETTER * len("budget"), "to": float(_WIDTH - _RIGHT)}
    ]
    for point in points:
        text = cut(point.name, _WIDTH / 2)
        # A letter more: short names have no narrow letters to make up for the wide ones.
        width, px, py = _LETTER * (len(text) + 1), x(point.seconds), y(point.error)
        anchor = "end" if px + width + 10 > _WIDTH else "start"
        left = px - 10 - width if anchor == "end" else px + 10
        while any(abs(each["y"] - 4 - py) < 16 and each["from"] < left + width and left < each["to"] for each in found):
            py += -15 if py > _HEIGHT / 2 else 15
        found.append(
            {
                "x": px + (-10 if anchor == "end" else 10),
                "y": py + 4,
                "anchor": anchor,
                "text": text,
                "from": left,
                "to": left + width,
            }
        )
    return found[1:]
