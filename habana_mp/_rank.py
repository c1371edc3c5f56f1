"""Which of several processes this one is, for the log, the report and the command line. Knows nothing of policies."""

from __future__ import annotations

import os

import torch.distributed as dist


def is_joined() -> bool:
    """Whether this process is in a process group."""
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """That of the process group; before there is one, RANK of the environment, which torchrun sets; else 0."""
    return dist.get_rank() if is_joined() else _number("RANK", 0)


def world_size() -> int:
    """How many processes there are: of the process group, else WORLD_SIZE of the environment, else 1."""
    return dist.get_world_size() if is_joined() else _number("WORLD_SIZE", 1)


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isascii() and text.isdigit() else default
