"""A report as one HTML page that needs no network: the templates with their style, their script and the data put in.

The script writes names, which may hold anything, as text only.
"""

from __future__ import annotations

import json
import math
from typing import Any

from markupsafe import Markup

from habana_mp._report import sums
from habana_mp._report.numbers import change_of, local_error
from habana_mp._show.depth import Place, depth, place_name
from habana_mp._show.html import whole_page

_SCRIPTS = ("units", "report", "ops", "modules", "lanes", "timeline", "page")


def page(report: dict[str, Any]) -> str:
    """The page of a report, from the dict that ``CastReport.to_dict`` gives."""
    shares = _error_shares(report)
    rows = [
        {**row, "precision": sums.precision(row), "error_share": share}
        for row, share in zip(report["rows"], shares, strict=True)
    ]
    return whole_page(
        "report.html",
        _SCRIPTS,
        report=report,
        data=_json(
            {
                **{key: each for key, each in report.items() if key != "edges"},
                "rows": rows,
                "precisions": sums.PRECISIONS,
            }
        ),
        picture=Markup(_picture(report, shares)),  # noqa: S704 - of a template that escapes
        split=sums.split(report),
        made_bytes=sums.made_bytes(report),
        other_seconds=sums.other_seconds(report),
        by_precision=_bars(sums.seconds_by_precision(report)),
        unlisted=sums.unlisted(report),
        missed=sums.missed(report),
        unmeasured=sums.unmeasured(report),
        modules=len({row["module"] for row in report["rows"]}),
        ops=len({row["op"] for row in report["rows"]}),
        lists=_by_list(report["never_seen"]),
    )


def _error_shares(report: dict[str, Any]) -> list[float]:
    """Of each row, 0 where nothing was measured."""
    size = change_of(report["rows"])
    changes = [size(row) if row.get("values") else 0.0 for row in report["rows"]]
    whole = sum(changes)
    return [change / whole if whole > 0 else 0.0 for change in changes]


def _picture(report: dict[str, Any], shares: list[float]) -> str:
    places = [
        Place(place_name(row["op"], row["module"]), _error(row["values"]["ran"]), None, share)
        for row, share in zip(report["rows"], shares, strict=True)
        if row.get("values") and row["values"]["calls"]
    ]
    return depth(places)


def _error(sums: dict[str, Any]) -> float:
    error = local_error(sums)
    return math.inf if error.lost else float(error)


def _json(report: dict[str, Any]) -> Markup:
    """JSON that ends no script element: beside ASCII it holds no < and no &."""
    text = json.dumps(report, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))  # noqa: S704 - escaped


def _bars(seconds: dict[str, float]) -> list[dict[str, Any]]:
    """The parts of a bar that is 100 wide."""
    whole = sum(seconds.values())
    made, left = [], 0.0
    for name, part in seconds.items():
        made.append({"name": name, "seconds": part, "whole": whole, "left": left, "width": 100 * part / whole})
        left += 100 * part / whole
    return made


def _by_list(never_seen: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for each in never_seen:
        found.setdefault(each["list"], []).append(each)
    return found
