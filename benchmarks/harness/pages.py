"""Where the results of a run go: results.json and goals.md in benchmarks/, the pages, sentences and pictures in docs/."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness import figures, goals, pictures, results, summary

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from harness.rows import Row
    from matplotlib.figure import Figure

TABLES_HEAD = (
    "# Tables of the benchmarks\n\n"
    "Written by `make bench`; [Benchmarks](benchmarks.md) has them in short. Variants that are compared take turns: each round visits every one of them, and the shortest run of "
    "each counts, so that what else the machine does matters little. Ratios say more than times.\n"
)
ACCURACY_HEAD = (
    "# Accuracy\n\n"
    "This page compares trainings of the same model under float32, `torch.autocast`, the presets `hmp` and `balanced`, and lists that `hmp.tune` wrote for "
    "the model. All begin with the same weights and use the same batches. The error budget of `hmp.tune` is half of the error of `torch.autocast`. The last "
    "section compares inference of trained models, also in [eight bits](int8.md). `make bench` writes this page.\n\n"
    "*Difference to float32* is the loss on held data minus that of float32 with the same seed, on average. *Between seeds* is the largest minus the "
    "smallest loss of the three seeds with one list. If the difference is much smaller than the range between seeds, the lists do not matter to this model. "
    "If `hmp.tune` moved all matrix products to float32 to stay within its budget, *tuned* is about the same as float32. Lists matter to other models: "
    "`python examples/rotary.py` prints an error of 86 % under `hmp` for the logits of its llama.\n"
)
GPU_PAGE = "benchmarks-gpu"
GPU_HEAD = (
    "# Benchmarks on a GPU\n\n"
    "`make gpu` writes this page, on a machine with CUDA. It measures as on the CPU ([Benchmarks](benchmarks.md)), and reads the clock when the device has "
    "done its work. [Versions](versions.md#devices) lists what was tested on a GPU. `hmp` is the preset of that name; one thread of the CPU queues the work. Models "
    "of less than a few milliseconds wait for Python, in float32 too.\n"
)
FRONT_HEAD = "# Benchmarks\n"
FRONT_FOOT = (
    "In the pictures, `fp32` is the model as it is, `autocast` is `torch.autocast`, `bf16` is the model held in bfloat16, `hmp` is `hmp.convert()` with the "
    "lists of Habana's guide, `hmp: torch-cpu` is `hmp.convert` with the lists of `torch.autocast`, and `hmp.autocast` is a region. Dots further left are "
    "better. [Tables of the benchmarks](benchmarks-tables.md) has every figure and how it was measured.\n"
)
FRONT_PICTURES = {
    "inference": "Time of inference by model and variant, as a multiple of the model held in bfloat16",
    "training": "Time of a training step and its peak memory by model and variant, as a multiple of torch.autocast",
}
# The sections of the tables in this order; others come after them.
ORDER = (
    "Inference",
    "Decoding",
    "Linear layers",
    "Compiled models",
    "Training",
    "Memory",
    "Overhead",
    "Kernels",
    "Casts",
    "Values",
    "Tuning",
)


@dataclass(frozen=True)
class Report:
    """A section of a page of docs/: its rows, the text that shows them, and pictures that its text shows, drawn if they are asked for."""

    title: str
    rows: list[Row]
    text: str
    pictures: Mapping[str, Callable[[], Figure]] = field(default_factory=dict)
    page: str = "benchmarks-tables"
    head: str = TABLES_HEAD  # of the page


def write(root: Path, report: Report, machine: str, commit: str) -> None:
    """The sections of other benchmarks stay as they are."""
    docs, path = root / "docs", root / "benchmarks" / "results.json"
    docs.mkdir(parents=True, exist_ok=True)
    found = results.load(path)
    found[report.title] = results.Section(machine, report.rows, commit)
    found = {title: found[title] for title in in_order(found)}
    results.save(path, found)
    write_section(
        docs / f"{report.page}.md", report.title, f"{found[report.title].origin}\n\n{report.text}", report.head
    )
    for name, draw in {**report.pictures, **pictures.of_results(found)}.items():
        pictures.save(draw, docs / f"{name}.svg")
    write_pages(root, found)


def write_gpu(root: Path, report: Report, machine: str, commit: str) -> None:
    """The section alone: goals and pictures are those of the CPU."""
    page = root / "docs" / f"{GPU_PAGE}.md"
    origin = results.Section(machine, report.rows, commit).origin
    write_section(page, report.title, f"{origin}\n\n{report.text}", GPU_HEAD)


def write_pages(root: Path, found: results.Results) -> None:
    """What is computed from the results alone."""
    (root / "benchmarks" / "goals.md").write_text(goals.goals_page(found, goals.load()))
    (root / "docs" / "benchmarks.md").write_text(front_page(found))
    figures.write(root, [row for section in found.values() for row in section.rows], figures.load())


def write_section(path: Path, title: str, text: str, head: str) -> None:
    parts = re.split(r"^## ", path.read_text(), flags=re.MULTILINE)[1:] if path.exists() else []
    sections = dict(part.split("\n", 1) for part in parts)
    sections[title] = text
    path.write_text(head + "".join(f"\n## {each}\n\n{sections[each].strip()}\n" for each in in_order(sections)))


def in_order(titles: object) -> list[str]:
    known = {title: place for place, title in enumerate(ORDER)}
    return sorted(titles, key=lambda title: known.get(title, len(known)))


def front_page(found: results.Results) -> str:
    """Six lines, a table and pictures: what a user wants to know of the tables."""
    drawn = pictures.of_results(found)
    here = {title: section for title, section in found.items() if title in ORDER}
    machines = sorted({section.machine for section in here.values()})
    shown = [f"![{alt}]({name}.svg)" for name, alt in FRONT_PICTURES.items() if name in drawn]
    parts = [
        FRONT_HEAD,
        "\n".join(f"{number}. {line}" for number, line in enumerate(summary.lines(found), 1)) + "\n",
        f"The figures are medians over models, batches and threads, with the minimum and maximum in brackets. Smaller is better. The model held in bfloat16 is the model after `model.to(torch.bfloat16)`. `make bench` measured them on {'; '.join(machines)}.{commits(here)}\n",
        summary.short_table(found) + "\n",
    ]
    return "\n".join([*parts, *(f"{picture}\n" for picture in shown), FRONT_FOOT])


def commits(found: results.Results) -> str:
    """A sentence that names the commits of the sections; nothing if none is known."""
    titles: dict[str, list[str]] = {}
    for title, section in found.items():
        titles.setdefault(section.commit or "not known", []).append(title)
    if titles.keys() <= {"not known"}:
        return ""
    named = [
        f"commit {commit} ({', '.join(of)})" if len(titles) > 1 else f"commit {commit}" for commit, of in titles.items()
    ]
    return f" They ran at {', '.join(named)}."
