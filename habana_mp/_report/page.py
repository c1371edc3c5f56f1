"""A report as one HTML page that needs no network: the templates with their style, their script and the data put in.

Names come from the user's code and may hold anything: jinja2 escapes them, the script writes them as text only, and the page's
Content-Security-Policy runs no script but the one of the templates.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from typing import Any

from markupsafe import Markup

from habana_mp._report import sums
from habana_mp._show.html import TEMPLATES, render

_SCRIPTS = ("units", "report", "ops", "modules", "lanes", "timeline", "page")


def page(report: dict[str, Any]) -> str:
    """The page of a report, from the dict that ``CastReport.to_dict`` gives."""
    style, script = _style(), _script()
    rows = [{**row, "precision": sums.precision(row)} for row in report["rows"]]
    text = render(
        "report.html",
        report=report,
        data=_json({**report, "rows": rows, "precisions": sums.PRECISIONS}),
        by_precision=_bars(sums.seconds_by_precision(report)),
        unlisted=sums.unlisted(report),
        missed=sums.missed(report),
        modules=len({row["module"] for row in report["rows"]}),
        ops=len({row["op"] for row in report["rows"]}),
        lists=_by_list(report["never_seen"]),
        style=Markup(style),  # noqa: S704 - a file of this package
        script=Markup(script),  # noqa: S704 - files of this package
        style_hash=_hash(style),
        script_hash=_hash(script),
    )
    # A path that is no UTF-8 has lone surrogates in it, which no file takes.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def frame(report: dict[str, Any]) -> str:
    """The page in a frame for the cell of a notebook: neither can reach the style and the scripts of the other."""
    srcdoc = Markup.escape(page(report))
    return f'<iframe sandbox="allow-scripts" style="width: 100%; height: 40rem; border: 0" srcdoc="{srcdoc}"></iframe>'


@cache
def _style() -> str:
    return (TEMPLATES / "report.css").read_text(encoding="utf-8")


@cache
def _script() -> str:
    parts = [(TEMPLATES / f"{name}.js").read_text(encoding="utf-8") for name in _SCRIPTS]
    return "\n".join(['"use strict";', "(() => {", *parts, "})();"])


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


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
