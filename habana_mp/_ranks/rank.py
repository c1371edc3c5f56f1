"""Which of several processes this one is, for the log, the report and the command line. Knows nothing of policies."""

from __future__ import annotations

import os

import torch.distributed as dist

# The variables of torchrun, and what Open MPI's mpirun sets in their place.
_OPEN_MPI = {
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "RANK": "OMPI_COMM_WORLD_RANK",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
}


def is_joined() -> bool:
    """Whether this process is in a process group."""
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """That of the process group; before there is one, what torchrun or mpirun set in the environment; else 0."""
    return dist.get_rank() if is_joined() else _number("RANK", 0)


def world_size() -> int:
    """How many processes there are: of the process group, else what torchrun or mpirun set, else 1."""
    return dist.get_world_size() if is_joined() else _number("WORLD_SIZE", 1)


def launched_with(variable: str) -> tuple[str, str | None]:
    """A variable of torchrun, under the name that the launcher of this process gave it, and its value; None where none set it."""
    name = variable if variable in os.environ else _OPEN_MPI[variable]
    return name, os.environ.get(name)


def _number(variable: str, default: int) -> int:
    text = launched_with(variable)[1] or ""
    return int(text) if text.isascii() and text.isdigit() else default
