"""A ``Comparison`` as one HTML page that needs no network."""

from __future__ import annotations

from typing import Any

from habana_mp._show.depth import Place, depth, place_name
from habana_mp._show.html import whole_page

_MOST_ROWS = 400


def page(found: Any) -> str:
    """Of a ``Comparison``."""
    from markupsafe import Markup

    forward = [row for row in found.rows if row.phase == "forward"]
    picture = depth([Place(place_name(row.op, row.module), row.made, row.total, row.share) for row in forward])
    rows = [*found.makers(), *(row for row in found.rows if row.kind == "passed on")]
    return whole_page(
        "comparison.html",
        found=found,
        rows=rows[:_MOST_ROWS],
        more=max(0, len(rows) - _MOST_ROWS),
        picture=Markup(picture),  # noqa: S704 - of a template that escapes
    )
