"""A report as one HTML page that needs no network: the templates with their style, their script and the data put in.

The script writes names, which may hold anything, as text only.
"""

from __future__ import annotations

import json
from typing import Any

from markupsafe import Markup

from habana_mp._report import sums
from habana_mp._show.html import whole_page

_SCRIPTS = ("units", "report", "ops", "modules", "lanes", "timeline", "page")


def page(report: dict[str, Any]) -> str:
    """The page of a report, from the dict that ``CastReport.to_dict`` gives."""
    rows = [{**row, "precision": sums.precision(row)} for row in report["rows"]]
    return whole_page(
        "report.html",
        _SCRIPTS,
        report=report,
        data=_json({**report, "rows": rows, "precisions": sums.PRECISIONS}),
        by_precision=_bars(sums.seconds_by_precision(report)),
        unlisted=sums.unlisted(report),
        missed=sums.missed(report),
        modules=len({row["module"] for row in report["rows"]}),
        ops=len({row["op"] for row in report["rows"]}),
        lists=_by_list(report["never_seen"]),
    )


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
