"""The devices that these tests run on: the CPU, and CUDA where there is one. `make gpu` runs this folder on a machine that has."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode

from habana_mp import hmp

DEVICES = ["cpu", "cuda"]


def pytest_runtest_setup(item):
    # Skipped in one place, so that pytest sums all of them up in one line.
    params = item.callspec.params if hasattr(item, "callspec") else {}
    if ("cuda" in item.fixturenames or "cuda" in params.values()) and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device here; make gpu runs it where there is one")


@pytest.fixture(autouse=True)
def _same_numbers():
    torch.manual_seed(0)
    hmp.cache.clear()


@pytest.fixture
def cuda():
    return "cuda"


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.fixture(params=[*DEVICES, "cuda, fake tensors"])
def any_device(request):
    """For tests that look at dtypes alone: fake tensors show those of CUDA on a machine without it (F183)."""
    if request.param in DEVICES:
        yield request.param
        return
    with FakeTensorMode(allow_fallback_kernels=False):
        yield "cuda"
