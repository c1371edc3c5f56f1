"""Starts the ranks of a test: a file of tests is also the program that each of its ranks runs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

WORLD = 2


class Ended(NamedTuple):
    status: int
    out: str
    err: str


def run_ranks(
    program: str, folder: Path, *arguments: str, env: dict[str, str] | None = None, world: int = WORLD
) -> list[Ended]:
    """What became of the ranks. The program gets the folder, where they meet, and the arguments."""
    shared = Path(__file__).parent
    folders = [str(shared), str(shared / "models"), os.environ.get("PYTHONPATH")]
    path = os.pathsep.join(filter(None, folders))
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "error", program, str(folder), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": path,
                "OMP_NUM_THREADS": "1",
                **(env or {}),
                "RANK": str(rank),
                "WORLD_SIZE": str(world),
            },
        )
        for rank in range(world)
    ]
    printed = [rank.communicate(timeout=120) for rank in ranks]
    return [Ended(rank.returncode, *texts) for rank, texts in zip(ranks, printed, strict=True)]


def join(folder: str, backend: str = "gloo", **options: object) -> int:
    """Called by the program; its rank."""
    torch.set_num_threads(1)
    rank, world = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    dist.init_process_group(backend, init_method=f"file://{folder}/meeting", rank=rank, world_size=world, **options)
    return dist.get_rank()


def leave() -> None:
    """Gloo's threads may still have tensors, and a process that ends at once may abort: torch 2.13 does so alone, too."""
    dist.destroy_process_group()
    time.sleep(0.1)
