"""A small recommendation model learns made clicks, as the DLRM script for Gaudi does: embedding bags, their products, two MLPs.

    habana-mp run dlrm.py --hmp

A user clicks where the sum of hidden weights of the things shown, and one of the numbers, say so.
"""

from __future__ import annotations

import itertools

import habana_frameworks.torch.core as htcore
import torch
from common import Processes, parse_arguments
from habana_frameworks.torch.hpex import hmp
from habana_frameworks.torch.hpex.kernels import EmbeddingBag, EmbeddingBagPreProc
from habana_frameworks.torch.hpex.optimizers import FusedAdagrad, FusedSGD
from torch import nn

TABLES, ROWS, WIDTH, NUMBERS = 4, 50, 16, 8
BAG = 3  # rows in a bag


def mlp(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, o in itertools.pairwise(widths):
        layers += [nn.Linear(i, o), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers[:-1])


class Dlrm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bottom = mlp(NUMBERS, 32, WIDTH)
        self.tables = nn.ModuleList(EmbeddingBag(ROWS, WIDTH) for _ in range(TABLES))
        self.prepare = EmbeddingBagPreProc()
        products = (TABLES + 1) * TABLES // 2
        self.top = mlp(WIDTH + products, 32, 1)

    def forward(self, numbers: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        dense = self.bottom(numbers)
        offsets = torch.arange(len(numbers), device=rows.device) * BAG
        bags = [table(*self.prepare(rows[:, i].flatten(), offsets)) for i, table in enumerate(self.tables)]
        features = torch.stack([dense, *bags], dim=1)
        products = torch.bmm(features, features.transpose(1, 2))
        i, j = torch.tril_indices(TABLES + 1, TABLES + 1, offset=-1, device=products.device)
        return self.top(torch.cat([dense, products[:, i, j]], dim=1)).squeeze(1)


def clicks(count: int, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    numbers = torch.randn(count, NUMBERS)
    rows = torch.randint(ROWS, (count, TABLES, BAG))
    score = numbers[:, 0] + sum(weights[i][rows[:, i]].sum(1) for i in range(TABLES))
    return numbers, rows, (score > 0).float()


def main() -> None:
    args = parse_arguments("Clicks by a DLRM.", lists="dlrm", steps=60, batch_size=256)
    processes = Processes(args)
    device = torch.device(args.device)
    if args.hmp:
        hmp.convert(
            opt_level=args.hmp_opt_level,
            bf16_file_path=args.hmp_bf16,
            fp32_file_path=args.hmp_fp32,
            isVerbose=args.hmp_verbose,
        )

    weights = 0.5 * torch.randn(TABLES, ROWS)
    plain = Dlrm().to(device)
    model = processes.wrap(plain)
    optimizers = (
        FusedSGD([*plain.bottom.parameters(), *plain.top.parameters()], lr=0.3),
        FusedAdagrad(plain.tables.parameters(), lr=0.3),
    )
    criterion = nn.BCEWithLogitsLoss()
    model.train()
    for step in range(1, args.steps + 1):
        numbers, rows, clicked = (processes.share(part).to(device) for part in clicks(args.batch_size, weights))
        loss = criterion(model(numbers, rows), clicked)
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if args.use_lazy_mode:
            htcore.mark_step()
        with hmp.disable_casts():
            for optimizer in optimizers:
                optimizer.step()
        if args.use_lazy_mode:
            htcore.mark_step()
        if step % 5 == 0:
            processes.report(step, loss)
    processes.end()


if __name__ == "__main__":
    main()
