"""`make gpu`, as far as a machine without CUDA can show it: whom it refuses, what it asks for, and the row that it writes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tools import gpu
from tools.environments import PAGE, CannotRun, pins
from tools.gpu import ACCEPTED, BENCHMARKS, NEEDED, Found, look, with_row

ROOT = Path(__file__).parent.parent.parent
H100 = Found("3.11.7", "2.13.0+cu130", "/site-packages/torch", "13.0", "NVIDIA H100")

REFUSED = {
    "no torch": (
        Found("3.11.7", why="No module named 'torch'"),
        "this Python cannot import torch (No module named 'torch'). ",
    ),
    "old": (H100._replace(torch="2.10.2"), "torch 2.10.2 is too old. "),
    "CPU build": (
        H100._replace(torch="2.13.0+cpu", device="", why="Torch not compiled with CUDA enabled"),
        "torch 2.13.0+cpu sees no CUDA device (Torch not compiled with CUDA enabled). ",
    ),
    "no GPU": (H100._replace(device=""), "torch 2.13.0+cu130 sees no CUDA device. "),
}


@pytest.mark.parametrize("name", REFUSED)
def test_who_is_refused(name):
    found, words = REFUSED[name]
    assert found.refusal == words + ACCEPTED


@pytest.mark.parametrize("torch", ["2.11.0", "2.13.0+cu130", "2.16.0a0+git1234567", "3.0"])
def test_who_is_not(torch):
    assert H100._replace(torch=torch).refusal == ""


def test_a_python_without_torch(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    assert look(tmp_path / "venv/bin/python").why == "No module named 'torch'"


def test_this_torch():
    found = look(sys.executable)
    assert (found.torch, Path(found.folder)) == (torch.__version__, Path(torch.__file__).parent)
    assert bool(found.device) == torch.cuda.is_available()


@pytest.mark.skipif(torch.cuda.is_available(), reason="it would run")
def test_without_a_device_it_says_one_line():
    done = subprocess.run([sys.executable, "-m", "tools.gpu"], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 1
    assert done.stdout == f"{look(sys.executable).refusal}\n"
    assert done.stderr == ""


def test_without_a_package_index_it_names_what_is_missing(tmp_path, monkeypatch):
    """pip may look nowhere, and one of what is needed is not there."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(gpu, "NEEDED", ["pip", "no-such-package"])
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    (tmp_path / "lib").mkdir()
    found = H100._replace(folder=str(tmp_path / "lib" / "torch"))
    with pytest.raises(CannotRun) as raised:
        gpu.set_up(str(bare / "bin/python"), found, tmp_path / "venv", tmp_path)
    assert f"these are missing: no-such-package. Install them into {bare}/bin/python" in str(raised.value)


def test_what_is_needed_has_a_pin():
    pinned = {line.partition("==")[0] for line in pins()}
    assert [name for name in NEEDED if name not in pinned and name != "torch"] == []
    assert not any(line.startswith("torch==") for line in pins())


def test_the_row_of_cuda_is_replaced():
    before = PAGE.read_text()
    page = with_row(before, H100, "40 passed, 0 failed, 0 skipped", "2026-12-01", "abcdef012")
    (row,) = re.findall(r"^\| CUDA \|.*$", page, re.MULTILINE)
    on = "NVIDIA H100, CUDA 13.0, torch 2.13.0+cu130, Python 3.11.7"
    assert row == (
        f"| CUDA | `tests/devices`: `make gpu` | {on} | 40 passed, 0 failed, 0 skipped | 2026-12-01 | abcdef012 |"
    )
    (old,) = re.findall(r"^\| CUDA \|.*$", before, re.MULTILINE)
    others = [line for line in before.splitlines() if line != old]
    assert [line for line in page.splitlines() if line != row] == others


@pytest.mark.parametrize("name", BENCHMARKS)
def test_its_benchmarks_take_a_device(name):
    assert "run(__doc__, measure, DEVICES)" in (ROOT / "benchmarks" / f"{name}.py").read_text()
