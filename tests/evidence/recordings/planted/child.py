"""Records, in a process of its own: python child.py FUNCTION FOLDER calls a function below."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import torch

from habana_mp import hmp
from tests.evidence.recordings.planted import plants
from tests.evidence.recordings.programs import record
from zoo.differences import LOWERED, STEPS, Net, net, step_of


def file_of(name: str) -> str:
    return name.replace(" ", "_") + ".rec"


def planted(folder: Path) -> None:
    """Each planted difference, each op lowered, and neither, in a recording."""
    record(folder / "plain.rec", step_of(net()))
    for name, difference in STEPS.items():
        changed = net()
        difference.change(changed)
        record(folder / file_of(name), step_of(changed))
    for op in LOWERED:
        with hmp.autocast("cpu", policy=hmp.Policy.from_ops(lower=[op], name="low")):
            record(folder / file_of(f"low {op}"), step_of(net()))


def programs(folder: Path) -> None:
    """Run a and run b of each program, and run b with each planted difference."""
    for program in plants.PROGRAMS:
        record(folder / file_of(f"a {program}"), plants.first(program))
        record(folder / file_of(f"b {program}"), plants.second(program))
    for program, plant in plants.CASES:
        record(folder / file_of(f"{program} {plant}"), plants.second(program, plant))


def equal(folder: Path) -> None:
    for seed in range(40):
        record(folder / file_of(f"equal {seed}"), step_of(seeded(seed)))


def seeded(seed: int) -> Net:
    torch.manual_seed(seed)
    return copy.deepcopy(Net()).eval()


if __name__ == "__main__":
    {"planted": planted, "programs": programs, "equal": equal}[sys.argv[1]](Path(sys.argv[2]))
