"""A call that is made again with what another run gave it: indices of this run and sizes of that one are never mixed (D50)."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys

import torch
import torch.nn.functional as F

from habana_mp import hmp


def step(rows):
    weight, places = torch.ones(rows, 1, requires_grad=True), torch.tensor([rows - 1, 0])
    bags = {"embedding_bag": {"mode": "sum", "offsets": torch.tensor([0, 1])}}
    getattr(F, sys.argv[1])(places, weight, scale_grad_by_freq=True, **bags.get(sys.argv[1], {})).sum().backward()


print(hmp.compare(lambda: step(4), lambda: step(20_000_000)))
"""


@pytest.mark.parametrize("op", ["embedding", "embedding_bag"])
def test_indices_of_one_run_never_meet_the_sizes_of_another(op: str) -> None:
    """Their backward passes count each index in a list as long as the table, and do not look whether it lies inside."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, op], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "its results have different sizes, " in done.stdout
