"""A CNN learns handwritten digits (scikit-learn's, 8 x 8), as the MNIST script for Gaudi does.

habana-mp run mnist.py --hmp
"""

from __future__ import annotations

import habana_frameworks.torch.core as htcore
import torch
import torch.nn.functional as F
from common import Processes, parse_arguments
from habana_frameworks.torch.hpex import hmp
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.lr_scheduler import StepLR


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = nn.Linear(32 * 4 * 4, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return F.log_softmax(self.fc2(x), dim=1)


def main() -> None:
    args = parse_arguments("Digits by a CNN.", lists="mnist", steps=60, batch_size=64)
    processes = Processes(args)
    device = torch.device(args.device)
    if args.hmp:
        hmp.convert(
            opt_level=args.hmp_opt_level,
            bf16_file_path=args.hmp_bf16,
            fp32_file_path=args.hmp_fp32,
            isVerbose=args.hmp_verbose,
        )

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    train, test = slice(0, 1500), slice(1500, None)

    model = processes.wrap(Net().to(device))
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=20, gamma=0.7)
    model.train()
    for step in range(1, args.steps + 1):
        batch = processes.share(torch.randint(1500, (args.batch_size,)))
        data, target = images[train][batch].to(device), labels[train][batch].to(device)
        optimizer.zero_grad(set_to_none=True)
        loss = F.nll_loss(model(data), target)
        loss.backward()
        if args.use_lazy_mode:
            htcore.mark_step()
        with hmp.disable_casts():
            optimizer.step()
        if args.use_lazy_mode:
            htcore.mark_step()
        scheduler.step()
        if step % 5 == 0:
            processes.report(step, loss)

    model.eval()
    with torch.no_grad():
        right = model(images[test].to(device)).argmax(dim=1).cpu() == labels[test]
    processes.print(f"accuracy {right.float().mean().item():.3f}")
    processes.end()


if __name__ == "__main__":
    main()
