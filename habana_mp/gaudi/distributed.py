"""`habana_frameworks.torch.distributed.hccl`: process groups of the backend "hccl", which is gloo on CPUs and NCCL on CUDA (F182).

Importing it registers "hccl" with torch.distributed, as importing Habana's does.
"""

from __future__ import annotations

import atexit
import os
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from habana_mp._hpu_device import stands_for

__all__ = ["initialize_distributed_hpu"]

_GLOO_SECONDS = 0.5

# What torchrun sets, and what Open MPI does, with the value of a process that stands alone.
_VARIABLES = (
    ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", 1),
    ("RANK", "OMPI_COMM_WORLD_RANK", 0),
    ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", 0),
)


def initialize_distributed_hpu() -> tuple[int, int, int]:
    """World size, rank and local rank of this process, from what torchrun or mpirun set; 1, 0, 0 without them.

    It makes no process group. That is left to the script, as on Gaudi:

    >>> world_size, rank, local_rank = initialize_distributed_hpu()
    >>> torch.distributed.init_process_group("hccl", rank=rank, world_size=world_size)

    Raises:
        ValueError: one of the variables is no integer.
    """
    world_size, rank, local_rank = (_integer(*variable) for variable in _VARIABLES)
    return world_size, rank, local_rank


def _integer(name: str, name_of_mpi: str, default: int) -> int:
    given = name if name in os.environ else name_of_mpi
    try:
        return int(os.environ.get(given, default))
    except ValueError:
        raise ValueError(f"{given}={os.environ[given]!r} is no integer") from None


def _process_group(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    if stands_for() == "cuda":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return dist.ProcessGroupNCCL(store, rank, size, options)
    atexit.register(_outlast_gloo)
    return dist.ProcessGroupGloo(store, rank, size, timeout=timeout)


def _outlast_gloo() -> None:
    """Gloo's threads give back the tensors of the last collective some time after it has ended; one that does so while the interpreter goes
    ends the process (seen with torch 2.13 alone, too). They need the GIL for it, which sleeping leaves to them.
    """
    time.sleep(_GLOO_SECONDS)


if "hccl" not in dist.Backend.backend_list:
    dist.Backend.register_backend("hccl", _process_group, devices=[stands_for()])
