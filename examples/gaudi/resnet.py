"""A small ResNet learns made pictures: the direction and the colour of stripes. As the ResNet script for Gaudi does.

habana-mp run resnet.py --hmp
"""

from __future__ import annotations

import math

import habana_frameworks.torch.core as htcore
import habana_frameworks.torch.hpu.graphs as htgraphs
import habana_frameworks.torch.utils.debug as htdebug
import torch
from common import Processes, parse_arguments
from habana_frameworks.torch.hpex import hmp
from habana_frameworks.torch.hpex.optimizers import FusedSGD
from torch import nn

DIRECTIONS, COLOURS = 4, 3


class Block(nn.Module):
    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = nn.Sequential(
            nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.downsample(x)
        return self.relu(out)


def resnet() -> nn.Module:
    stem = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    blocks = [Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2)]
    return nn.Sequential(*stem, *blocks, nn.AvgPool2d(4), nn.Flatten(), nn.Linear(64, DIRECTIONS * COLOURS))


def permute_params(model: nn.Module) -> None:
    """Weights of convolutions in the device's layout, for a bridge that does not bring them there by itself."""
    if htcore.is_enabled_weight_permute_pass() is True or htdebug._is_enabled_synapse_layout_handling() is True:
        return
    for parameter in model.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.permute(2, 3, 1, 0)


def pictures(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.randint(DIRECTIONS * COLOURS, (count,))
    angle = (labels % DIRECTIONS) * (math.pi / DIRECTIONS)
    y, x = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    stripes = torch.sin(x * angle.cos().view(-1, 1, 1) + y * angle.sin().view(-1, 1, 1))
    images = 0.5 * torch.randn(count, 3, 32, 32)
    images[torch.arange(count), labels // DIRECTIONS] += stripes
    return images, labels


def main() -> None:
    args = parse_arguments("Stripes by a ResNet.", lists="resnet", steps=40, batch_size=32)
    processes = Processes(args)
    device = torch.device(args.device)
    if args.hmp:
        hmp.convert(
            opt_level=args.hmp_opt_level,
            bf16_file_path=args.hmp_bf16,
            fp32_file_path=args.hmp_fp32,
            isVerbose=args.hmp_verbose,
        )

    images, labels = pictures(512)
    model = resnet().to(device)
    permute_params(model)
    model = processes.wrap(model)
    optimizer = FusedSGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    model.train()
    for step in range(1, args.steps + 1):
        batch = processes.share(torch.randint(len(images), (args.batch_size,)))
        image, target = images[batch].to(device), labels[batch].to(device)
        output = model(image)
        loss = criterion(output, target)
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

    graphed = htgraphs.wrap_in_hpu_graph(model.eval())
    with torch.no_grad():
        right = graphed(image).topk(1, dim=1).indices.squeeze(1) == target
    processes.print(f"accuracy of the last batch {right.float().mean().item():.3f}")
    processes.end()


if __name__ == "__main__":
    main()
