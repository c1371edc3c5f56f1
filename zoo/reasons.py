"""Why an error, or a difference between the front ends, is meant: patterns, of which the first that matches gives the reason."""

from __future__ import annotations

import re
from typing import NamedTuple


class Reason(NamedTuple):
    # Of an error: "label front policy: message". Of a difference: the label, such as "op/mm".
    pattern: str
    text: str


RAISES: list[Reason] = [
    Reason(
        r".* torch-(cuda|xpu): RuntimeError: .*binary_cross_entropy.*",
        "`torch-cuda` and `torch-xpu` refuse `binary_cross_entropy` as `torch.autocast` does on those devices ([D31](decisions.md#d31)).",
    ),
]
DISAGREEMENTS: list[Reason] = []


def find(table: list[Reason], text: str) -> str:
    return next((reason.text for reason in table if re.fullmatch(reason.pattern, text)), "")
