"""Runs this folder on the late device, in processes of their own: its name and its threads are of a whole process.

The device (late/) computes on the CPU, and is as asynchronous as CUDA: each stream is a thread that begins its tasks late, memory of the device cannot be
read by the host, and what is freed is filled with NaNs when its stream has come so far. What waits too little gets wrong numbers here, without a GPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from late_device import build

pytestmark = [
    pytest.mark.xdist_group("late_device"),
    pytest.mark.unsanitized(reason="it loads a library without the sanitizers"),
    pytest.mark.skipif("HABANA_MP_LATE_LIBRARY" in os.environ, reason="this is the late device"),
    pytest.mark.skipif(not hasattr(torch.Stream, "is_capturing"), reason="this torch knows of captures on CUDA alone"),
]

HERE = Path(__file__).parent
PROGRAM = """
import ctypes
import sys
import torch
from late_device import register

register(sys.argv[1], seed=0)
x = torch.ones(4, device="late")
assert x.cpu().tolist() == [1.0] * 4
ctypes.string_at(x.data_ptr(), 16)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build(tmp_path_factory.mktemp("late"))


def test_the_host_cannot_read_its_memory(library):
    paths = {**os.environ, "PYTHONPATH": str(HERE)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, library], capture_output=True, text=True, check=False, env=paths
    )
    assert done.returncode != 0
    assert "late device: the host has read or written memory of the device" in done.stderr


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1])
def test_on_the_late_device(library, seed):
    device = {"HABANA_MP_LATE_LIBRARY": str(library), "HABANA_MP_LATE_SEED": str(seed)}
    command = [sys.executable, "-X", "faulthandler", "-m", "pytest", "-p", "no:cacheprovider", "-q", str(HERE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **device})
    assert done.returncode == 0, done.stdout + done.stderr
