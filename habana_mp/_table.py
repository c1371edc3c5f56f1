"""stub until the page branch lands"""

from __future__ import annotations

from typing import Any


def text(report: dict[str, Any]) -> str:
    import json

    return json.dumps({k: v for k, v in report.items() if k not in ("rows", "timeline", "never_seen")}, indent=1)


def table(report: dict[str, Any]) -> Any:
    return text(report)
