"""A folder of recordings that another process has made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """As in the other process: sums of more threads are other numbers."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def recorded_by(tmp_path_factory):
    folders = {}

    def call(function: str, python: str = sys.executable) -> Path:
        if function not in folders:
            folders[function] = folder = tmp_path_factory.mktemp(function)
            child = Path(__file__).with_name("child.py")
            done = subprocess.run(
                [python, child, function, folder],
                env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
        return folders[function]

    return call
