"""What the scripts of this folder share: the arguments of a script for Gaudi, and the processes that torchrun starts."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
from habana_frameworks.torch.distributed.hccl import initialize_distributed_hpu
from habana_frameworks.torch.utils.library_loader import load_habana_module
from torch import distributed, nn

HERE = Path(__file__).parent


def parse_arguments(description: str, *, lists: str, steps: int, batch_size: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--device", default="hpu")
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--batch-size", type=int, default=batch_size, help="of all processes together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hmp", action="store_true", help="mixed precision")
    parser.add_argument("--hmp-bf16", default=str(HERE / f"ops_bf16_{lists}.txt"), help="list of ops for bfloat16")
    parser.add_argument("--hmp-fp32", default=str(HERE / f"ops_fp32_{lists}.txt"), help="list of ops for float32")
    parser.add_argument("--hmp-opt-level", default="O1", choices=["O1", "O2"])
    parser.add_argument("--hmp-verbose", action="store_true", help="a line for each cast op")
    parser.add_argument("--use_lazy_mode", action="store_true", help="gather ops into graphs until mark_step")
    return parser.parse_args()


class Processes:
    """The processes of torchrun and which of them this one is; without torchrun it is alone."""

    def __init__(self, args: argparse.Namespace) -> None:
        os.environ["PT_HPU_LAZY_MODE"] = "1" if args.use_lazy_mode else "2"
        load_habana_module()
        torch.manual_seed(args.seed)
        self.world_size, self.rank, local_rank = initialize_distributed_hpu()
        if local_rank == -1:
            self.rank = 0
        else:
            distributed.init_process_group("hccl", rank=self.rank, world_size=self.world_size)

    def wrap(self, model: nn.Module) -> nn.Module:
        return nn.parallel.DistributedDataParallel(model) if self.world_size > 1 else model

    def share(self, batch: torch.Tensor) -> torch.Tensor:
        """The part of a batch that is for this process."""
        return batch[self.rank :: self.world_size]

    def report(self, step: int, loss: torch.Tensor) -> None:
        """Print the mean of the losses of all processes."""
        mean = loss.detach().float() / self.world_size
        if self.world_size > 1:
            distributed.all_reduce(mean)
        self.print(f"step {step:>3}  loss {mean.item():.4f}")

    def print(self, *words: Any) -> None:
        if self.rank == 0:
            print(*words, flush=True)

    def end(self) -> None:
        if distributed.is_initialized():
            distributed.destroy_process_group()
