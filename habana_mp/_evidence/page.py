"""A ``Comparison`` as one HTML page that needs no network."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from habana_mp._policy.diff import words
from habana_mp._show.depth import Place, depth, place_name
from habana_mp._show.html import whole_page

_MOST_ROWS = 400


def page(found: Any) -> str:
    """Of a ``Comparison``."""
    from markupsafe import Markup

    after = [*_after_backward(found.rows)]
    forward = [row for row in found.rows if row.phase == "forward" and row not in after]
    picture = depth([Place(place_name(row.op, row.module), row.made, row.total, row.share) for row in forward])
    rows = [row for row in (*found.makers(), *_passed_on(found)) if row not in after]
    diff = found.policy_diff
    return whole_page(
        "comparison.html",
        found=found,
        settings={} if diff is None else {name: tuple(map(words, pair)) for name, pair in diff.settings.items()},
        other_rules={} if diff is None else diff.ops,
        rules_here=found.differing_ops(),
        rows=rows[:_MOST_ROWS],
        after_backward=after[:_MOST_ROWS],
        more=max(0, len(rows) - _MOST_ROWS),
        picture=Markup(picture),  # noqa: S704 - of a template that escapes
    )


def _passed_on(found: Any) -> Iterator[Any]:
    return (row for row in found.rows if row.kind == "passed on")


def _after_backward(rows: tuple[Any, ...]) -> Iterator[Any]:
    """What an optimizer does, and the like: it runs outside of modules when a backward pass has run, and changes no loss of this step."""
    backward = False
    for row in rows:
        backward |= row.phase == "backward"
        if backward and row.phase == "forward" and not row.module and not row.share:
            yield row
