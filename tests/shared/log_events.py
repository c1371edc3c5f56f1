"""A line of the cast log, written as a text. What ops log is in tests/watch/test_log_lines.py."""

from __future__ import annotations

import habana_mp._core as _core

LINE = "casting  <built-in function linear> to_bf16\n"


def write(op="<built-in function linear>"):
    _core.write_log_text(f"casting  {op} to_bf16")
