"""A report as one HTML page that needs no network: the templates with their style, their script and the data put in.

The script writes names, which may hold anything, as text only.
"""

from __future__ import annotations

import json
import math
from typing import Any

from markupsafe import Markup

from habana_mp._report import sums
from habana_mp._report.added import grouped
from habana_mp._report.data import Error, NeverSeen, Report
from habana_mp._report.edits.edits import edits
from habana_mp._report.errors.objective import Objective
from habana_mp._report.findings.advice import of_edit
from habana_mp._report.findings.beginning import beginning, how_to_try
from habana_mp._report.findings.preset_errors import foretold, invitation
from habana_mp._report.findings.unknown import OUTSIDE, is_outside, why_not_all
from habana_mp._report.numbers import change_of, local_error, shares_known
from habana_mp._show.depth import Place, depth, place_name
from habana_mp._show.html import whole_page

_SCRIPTS = ("copy", "units", "report", "ops", "modules", "lanes", "timeline", "page")


def page(report: Report) -> str:
    shares = _error_shares(report)
    data = report.to_dict()
    for name in ("edges", "reads"):
        data.pop(name, None)
    for values, row, share in zip(data["rows"], report.rows, shares, strict=True):
        values |= {"precision": sums.precision(row), "error_share": share}
    return whole_page(
        "report.html",
        _SCRIPTS,
        report=report,
        **_what_to_do(report),
        data=_json({**data, "precisions": sums.PRECISIONS}),
        picture=Markup(_picture(report, shares)),  # noqa: S704 - of a template that escapes
        split=sums.split(report),
        made_bytes=sums.made_bytes(report),
        other_seconds=sums.other_seconds(report),
        by_precision=_bars(sums.seconds_by_precision(report)),
        unlisted=sums.unlisted(report),
        missed=sums.missed(report),
        unmeasured=sums.unmeasured(report),
        cast_ops=sums.cast_ops,
        modules=len({row.module for row in report.rows}),
        ops=len({row.op for row in report.rows}),
        lists=_by_list(report.never_seen),
    )


def _what_to_do(report: Report) -> dict[str, Any]:
    """The error, the edits to take and those that are left, and the advice that is no edit."""
    found = edits(report) if report.low_dtype else []
    head, objective = beginning(report, found), Objective(report)
    taken = head.edits if head is not None else ()
    advised = {of_edit(edit) for edit in found}
    return {
        "head": head,
        "what": objective.what,
        "error": objective.error() if objective.known else None,
        "foretold": foretold(report),
        "to_take": taken,
        "how_to_try": how_to_try(report, [edit.text for edit in taken]) if taken else "",
        "more_edits": [edit for edit in found if edit not in taken],
        "invitation": invitation(report),
        "not_all": ": ".join((report.low_dtype and why_not_all(report)) or ()),
        "outside": OUTSIDE if is_outside(report) else "",
        "advice": [each for each in report.advice if each not in advised],
    }


def _error_shares(report: Report) -> list[float]:
    """Of each row, 0 where nothing was measured."""
    size = change_of(report.rows)
    changes = [*map(size, report.rows)]
    whole = sum(changes) if shares_known(report) else 0.0
    return [change / whole if whole > 0 else 0.0 for change in changes]


def _picture(report: Report, shares: list[float]) -> str:
    places = [
        Place(place_name(row.op, row.module), _error(row.measured.ran), None, share)
        for row, share in zip(report.rows, shares, strict=True)
        if row.measured.calls
    ]
    return depth(places)


def _error(sums: Error) -> float:
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


def _by_list(never_seen: list[NeverSeen]) -> dict[str, list[NeverSeen]]:
    return {group[0].list: group for group in grouped(never_seen, lambda each: each.list)}
