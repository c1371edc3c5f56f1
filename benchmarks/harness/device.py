"""The device that a benchmark runs on. Read from the command line before anything else is imported: names of variants contain it."""

from __future__ import annotations

import argparse
from typing import Any

DEVICES = ("cpu", "cuda")

parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
parser.add_argument("--device", choices=DEVICES, default="cpu", help="where the models and tensors are (cpu)")
DEVICE: str = parser.parse_known_args()[0].device


def placed(value: Any) -> Any:
    """A module or a tensor, on the device."""
    return value.to(DEVICE)


def thread_counts(counts: tuple[int, ...]) -> tuple[int, ...]:
    """Of the CPU's threads. What a GPU computes does not depend on them."""
    return counts if DEVICE == "cpu" else counts[:1]
