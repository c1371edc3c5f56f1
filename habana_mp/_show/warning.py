"""Warnings that point at the user's line."""

from __future__ import annotations

import inspect
import os
import warnings
from pathlib import Path

_PACKAGE = str(Path(__file__).parent.parent) + os.sep


def warn(text: str, *, through: str = _PACKAGE) -> None:
    """A warning that shows the line of the user's code that called into this package, through a file of torch perhaps."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_back is not None and frame.f_code.co_filename.startswith((_PACKAGE, through)):
        level, frame = level + 1, frame.f_back
    try:
        warnings.warn(text, UserWarning, stacklevel=level)
    except Warning:  # as the user's filter asks
        raise
    except Exception:  # noqa: BLE001, S110 - sys.stderr may be any object, and closed
        pass
