"""stub until the page branch lands"""

from __future__ import annotations

import json
from typing import Any


def page(report: dict[str, Any]) -> str:
    return json.dumps(report)


def frame(report: dict[str, Any]) -> str:
    return json.dumps(report)
