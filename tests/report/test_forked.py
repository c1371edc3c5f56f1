"""What forked processes cast, such as the workers of a DataLoader: no row has it, so the report counts it and says so."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from habana_mp import hmp


class Products(Dataset):
    """Of each item two tensors are cast."""

    def __init__(self, region=torch.no_grad):
        self.region = region

    def __len__(self):
        return 4

    def __getitem__(self, i):
        with self.region():
            return torch.ones(2) @ torch.ones(2, 2)


def loads(*, workers, **options):
    return lambda: [*DataLoader(Products(**options), 2, num_workers=workers)]


def forks():
    """A process that casts, and one of its own that does so."""
    if (child := os.fork()) == 0:
        Products()[0]
        loads(workers=1)()
        os._exit(0)
    os.waitpid(child, 0)


HERE, NOBODY, THERE = (4 * 2, 0), (0, 0), (0, 4 * 2)


@pytest.mark.parametrize(
    ("work", "casts"),
    [
        (loads(workers=0), HERE),
        (loads(workers=2), THERE),
        (loads(workers=2, region=hmp.disable_casts), NOBODY),
        (functools.partial(subprocess.run, [sys.executable, "-c", ""], check=True), NOBODY),
        (forks, (0, 2)),
    ],
    ids=["no worker", "workers", "workers without casts", "another program", "a fork"],
)
@pytest.mark.parametrize("front_end", ["convert", "autocast"])
def test_the_casts_of_forked_processes(work, casts, front_end):
    policy = hmp.Policy.load("hmp")
    with hmp.report() as r:
        if front_end == "convert":
            hmp.convert(policy=policy)
            work()
        else:
            with hmp.autocast("cpu", policy=policy):
                work()
    assert (r.casts(), r.to_dict()["forked_casts"]) == casts
    assert any("forked processes cast" in str(line) for line in r.advice) == bool(casts[1])
    assert hmp.CastReport.merged([r, r]).to_dict()["forked_casts"] == 2 * casts[1]


def test_an_edit_does_not_undo_what_workers_round() -> None:
    hmp.convert(policy=hmp.Policy.load("balanced"))
    net = torch.nn.Linear(2, 2)
    for region in (hmp.disable_casts, torch.no_grad):
        with hmp.report(values=True) as r:
            x = torch.stack(loads(workers=1, region=region)()).float()
            net(x).float().mean().backward()
        assert ("nothing is rounded" in str(r)) == (region is hmp.disable_casts)
