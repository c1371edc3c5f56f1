"""The devices that these tests run on: the CPU, and CUDA where there is one. `make gpu` runs this folder on a machine that has.

test_late_device.py runs the folder again, in processes whose only device is "late", simulated and asynchronous (late/).
"""

from __future__ import annotations

import contextlib
import os

import pytest
import torch
from late_device import register
from torch._subclasses import FakeTensorMode

from habana_mp import hmp

LIBRARY = os.environ.get("HABANA_MP_LATE_LIBRARY")
if LIBRARY:
    register(LIBRARY, int(os.environ["HABANA_MP_LATE_SEED"]))
DEVICES = ["late"] if LIBRARY else ["cpu", "cuda"]
ACCELERATOR = "late" if LIBRARY else "cuda"


def pytest_runtest_setup(item):
    # Skipped in one place, so that pytest sums all of them up in one line.
    params = item.callspec.params if hasattr(item, "callspec") else {}
    names = {"cuda", "accelerator"} & {*item.fixturenames}
    if (
        (names or "cuda" in params.values())
        and not torch.cuda.is_available()
        and not (LIBRARY and names <= {"accelerator"})
    ):
        pytest.skip("there is no CUDA device here; make gpu runs it where there is one")


@pytest.fixture(autouse=True)
def _same_numbers():
    torch.manual_seed(0)
    hmp.cache.clear()
    yield
    if LIBRARY:
        torch.accelerator.synchronize()  # a task that has failed fails the test


@pytest.fixture
def cuda():
    return "cuda"


@pytest.fixture
def accelerator():
    """The device type of a device with streams: CUDA, or the late device."""
    return ACCELERATOR


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


@contextlib.contextmanager
def converted(device, dtype, policy):
    hmp.convert(policy=policy)
    yield lambda **_: contextlib.nullcontext()


@contextlib.contextmanager
def in_regions(device, dtype, policy):
    yield lambda **options: hmp.autocast(device, dtype, policy=policy, **options)


@contextlib.contextmanager
def by_torch(device, dtype, policy):
    yield lambda **options: torch.autocast(device, dtype, **options)


class FrontEnd:
    """Starts a front end for the rest of the test: what it returns makes regions, which do nothing under ``convert``."""

    def __init__(self, make, device, stack):
        self.make, self.device, self.stack = make, device, stack
        self.is_torch = make is by_torch

    def __call__(self, dtype=torch.bfloat16, policy="torch-cuda"):
        chosen = (policy if isinstance(policy, hmp.Policy) else hmp.Policy.load(policy)).with_low_dtype(dtype)
        return self.stack.enter_context(self.make(self.device, dtype, chosen))


@pytest.fixture(params=[converted, in_regions, by_torch], ids=["convert", "region", "torch"])
def front_end(request, accelerator):
    """Both front ends, by torch's rules for CUDA, and torch.autocast, of which the same is expected."""
    with contextlib.ExitStack() as stack:
        yield FrontEnd(request.param, accelerator, stack)
