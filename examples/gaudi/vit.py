"""A small vision transformer learns handwritten digits (scikit-learn's), as the ViT script for Gaudi does.

    habana-mp run vit.py --hmp

It converts twice: the first steps run in O2, which keeps all but the matrix products in float32; then the lists take over.
"""

from __future__ import annotations

import argparse

import habana_frameworks.torch.core as htcore
import habana_frameworks.torch.utils.debug as htdebug
import torch
from common import Processes, parse_arguments
from habana_frameworks.torch.hpex import hmp
from habana_frameworks.torch.hpex.optimizers import FusedAdamW
from sklearn.datasets import load_digits
from torch import nn

PATCHES, WIDTH = 16, 64
FIRST_STEPS = 5


class Attention(nn.Module):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        scores = torch.matmul(query, key.transpose(-1, -2)) / (WIDTH // self.heads) ** 0.5
        mixed = torch.matmul(torch.softmax(scores, dim=-1), value)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention(heads=4)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, WIDTH, kernel_size=2, stride=2)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.positions = nn.Parameter(0.02 * torch.randn(1, PATCHES + 1, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(3)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), patches], dim=1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


def convert(args: argparse.Namespace, *, is_first: bool) -> None:
    if is_first:
        hmp.convert(opt_level="O2", isVerbose=args.hmp_verbose)
    else:
        hmp.convert(args.hmp_opt_level, args.hmp_bf16, args.hmp_fp32, args.hmp_verbose)


def main() -> None:
    args = parse_arguments("Digits by a vision transformer.", lists="vit", steps=60, batch_size=64)
    htdebug._enable_fuse_conv_bn_optimization(True)
    processes = Processes(args)
    device = torch.device(args.device)

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    labels = torch.tensor(digits.target)

    model = processes.wrap(ViT().to(device))
    optimizer = FusedAdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    criterion = nn.CrossEntropyLoss()
    model.train()
    for step in range(1, args.steps + 1):
        if args.hmp and step in (1, FIRST_STEPS + 1):
            convert(args, is_first=step == 1)
        batch = processes.share(torch.randint(1500, (args.batch_size,)))
        loss = criterion(model(images[batch].to(device)), labels[batch].to(device))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if args.use_lazy_mode:
            htcore.mark_step()
        with hmp.disable_casts():
            optimizer.step()
        if args.use_lazy_mode:
            htcore.mark_step()
        if step % 5 == 0:
            processes.report(step, loss)

    model.eval()
    with torch.no_grad():
        right = model(images[1500:].to(device)).argmax(dim=1).cpu() == labels[1500:]
    processes.print(f"accuracy {right.float().mean().item():.3f}")
    processes.end()


if __name__ == "__main__":
    main()
