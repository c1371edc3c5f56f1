"""Trains a small CNN on scikit-learn's 1,797 handwritten digits: in float32, then converted, both shown side by side.

The lists are the ones that Habana's guide gives for ResNet50; edit them and run this again. The picture of both loss
curves and the full cast log go to examples/out/.
"""

from __future__ import annotations

import contextlib
import io
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from habana_mp import hmp

ROOT = Path(__file__).parent.parent
LISTS = ROOT / "lists" / "hmp-resnet50"
OUT = Path(__file__).parent / "out"
EPOCHS = 12
BATCH = 64
TEST_IMAGES = 360

# Bound to this stream, as the cast log goes to whatever sys.stdout is at the time.
console = Console(file=sys.stdout, soft_wrap=True)


class SmallCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(32)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(64)
        self.conv3 = nn.Conv2d(64, 64, 3, padding=1)
        self.head = nn.Linear(64 * 2 * 2, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        x = F.avg_pool2d(F.relu(self.conv3(x)), 2)
        return self.head(x.flatten(1))


@dataclass
class Run:
    """What one training leaves behind."""

    losses: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    accuracy: float = 0.0

    @property
    def final_loss(self) -> float:
        return statistics.fmean(self.losses[-20:])

    @property
    def step_ms(self) -> float:
        return statistics.median(self.step_seconds) * 1e3


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    return images, torch.tensor(data.target)


def train(name: str, images: torch.Tensor, labels: torch.Tensor) -> Run:
    """The training loop of a float32 script; all that hmp adds to it is the disable_casts block."""
    torch.manual_seed(0)
    model = SmallCNN()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    run = Run()
    train_images, train_labels = images[:-TEST_IMAGES], labels[:-TEST_IMAGES]
    batches = [order for _ in range(EPOCHS) for order in torch.randperm(len(train_images)).split(BATCH)]
    columns = (
        TextColumn("{task.description:<10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4f}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, redirect_stdout=False) as progress:
        task = progress.add_task(name, total=len(batches), loss=float("nan"))
        for batch in batches:
            start = time.perf_counter()
            loss = F.cross_entropy(model(train_images[batch]), train_labels[batch])
            optimizer.zero_grad()
            loss.backward()
            with hmp.disable_casts():
                optimizer.step()
            run.step_seconds.append(time.perf_counter() - start)
            run.losses.append(loss.item())
            progress.update(task, advance=1, loss=loss.item())
    model.eval()
    with torch.no_grad():
        right = model(images[-TEST_IMAGES:]).argmax(1) == labels[-TEST_IMAGES:]
    run.accuracy = right.float().mean().item()
    return run


def train_converted(images: torch.Tensor, labels: torch.Tensor) -> tuple[Run, list[str]]:
    """The same training under hmp.convert, and the lines of its cast log."""
    log = io.StringIO()
    with contextlib.redirect_stdout(log):
        hmp.convert(
            opt_level="O1",
            bf16_file_path=str(LISTS / "lower.txt"),
            fp32_file_path=str(LISTS / "fp32.txt"),
            isVerbose=True,
        )
        try:
            run = train("converted", images, labels)
        finally:
            hmp.revert()
    return run, log.getvalue().splitlines()


def different(lines: list[str]) -> list[str]:
    return list(dict.fromkeys(line for line in lines if line.startswith("casting")))


def show(float32: Run, converted: Run) -> None:
    table = Table(title="digits, trained twice from the same start")
    table.add_column("")
    table.add_column("float32", justify="right")
    table.add_column("converted (bfloat16 by lists)", justify="right")
    table.add_row("test accuracy", f"{float32.accuracy:.1%}", f"{converted.accuracy:.1%}")
    table.add_row("loss, last 20 steps", f"{float32.final_loss:.4f}", f"{converted.final_loss:.4f}")
    table.add_row("step, median", f"{float32.step_ms:.1f} ms", f"{converted.step_ms:.1f} ms")
    console.print(table)


def smooth(values: list[float]) -> list[float]:
    """The mean of the last epoch at each step."""
    width = len(values) // EPOCHS
    return [statistics.fmean(values[max(0, i + 1 - width) : i + 1]) for i in range(len(values))]


def draw(float32: Run, converted: Run, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    # The two nearly coincide: the wide pale line stays visible under the thin one.
    for run, name, color, width in (
        (float32, "float32", "#9ec5e8", 6.0),
        (converted, "converted: bfloat16 by lists", "#c0392b", 1.4),
    ):
        label = f"{name} (test accuracy {run.accuracy:.1%})"
        axes.semilogy(smooth(run.losses), color=color, linewidth=width, label=label, solid_capstyle="round")
    axes.set_title("Small CNN on 1,797 handwritten digits", loc="left", fontweight="bold")
    axes.set_xlabel("training step")
    axes.set_ylabel("cross entropy, mean of one epoch")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlim(0, len(float32.losses) - 1)
    axes.grid(visible=True, which="major", color="#e0e0e0", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper right")
    figure.savefig(path, dpi=150)


def main() -> None:
    OUT.mkdir(exist_ok=True)
    images, labels = digits()
    float32 = train("float32", images, labels)
    converted, lines = train_converted(images, labels)
    (OUT / "casts.log").write_text("\n".join(lines) + "\n")
    draw(float32, converted, OUT / "digits.png")
    console.print()
    show(float32, converted)
    console.print(f"\nThe cast log has {len(lines):,} lines. Each different one, in order:", highlight=False)
    for line in different(lines):
        console.print("  " + line, markup=False, highlight=False)
    out = OUT.relative_to(ROOT)
    console.print(f"\nPicture: {out / 'digits.png'}   log: {out / 'casts.log'}", highlight=False)


if __name__ == "__main__":
    main()
