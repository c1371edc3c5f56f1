"""`habana_frameworks.torch.distributed.hccl`: process groups of the backend "hccl", which is gloo on CPUs and NCCL on CUDA."""  # (F182)

from __future__ import annotations

import atexit
import os
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from habana_mp._hpu.mapping import hpu_device_type
from habana_mp._ranks.rank import launched_with
from habana_mp._torch_private import NCCL

__all__ = ["initialize_distributed_hpu"]


def initialize_distributed_hpu(
    world_size: int | None = None, rank: int | None = None, local_rank: int | None = None
) -> tuple[int, int, int]:
    """World size, rank and local rank of this process: the arguments, else what torchrun or mpirun set, else 1, -1, -1.

    A rank of -1 says that nobody has launched several processes, as scripts ask. MASTER_ADDR and MASTER_PORT become localhost and 12345
    where they are not set. It makes no process group. That is left to the script, as on Gaudi:

    >>> world_size, rank, local_rank = initialize_distributed_hpu()
    >>> if local_rank != -1:
    ...     torch.distributed.init_process_group("hccl", rank=rank, world_size=world_size)

    Raises:
        ValueError: a number is no integer, an argument or a variable.
    """  # (D48)
    found = _integer("WORLD_SIZE", world_size, 1), _integer("RANK", rank, -1), _integer("LOCAL_RANK", local_rank, -1)
    for name, value in (("MASTER_ADDR", "localhost"), ("MASTER_PORT", "12345")):
        os.environ.setdefault(name, value)
    return found


def _integer(variable: str, value: int | None, default: int) -> int:
    """Of an argument that is named as the variable is, else of the variable."""
    name, text = (variable.lower(), value) if value is not None else launched_with(variable)
    try:
        return default if text is None else int(text)
    except (TypeError, ValueError):
        raise ValueError(f"{name}={text!r} is not an integer") from None


def _process_group(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    if hpu_device_type() == "cuda":
        options = dist.ProcessGroupNCCL.Options()
        if NCCL.of(options, "timeout", None) is not None:
            setattr(options, NCCL.place("timeout")[1], timeout)
        return dist.ProcessGroupNCCL(store, rank, size, options)
    # Gloo's threads give back the tensors of the last collective some time after it has ended; one that does so while the interpreter goes
    # ends the process (seen with torch 2.13 alone, too). They need the GIL for it, which sleeping leaves to them.
    atexit.register(time.sleep, 0.5)
    return dist.ProcessGroupGloo(store, rank, size, timeout=timeout)


def register_hccl() -> None:
    """Make "hccl" a backend of ``init_process_group``. A second call does nothing."""
    if "hccl" not in dist.Backend.backend_list:
        dist.Backend.register_backend("hccl", _process_group, devices=[hpu_device_type()])
