"""Threads that compute while others look at weights: no lock of the core is held where the GIL is waited for (src/base/fork_safe_mutex.h)."""

from __future__ import annotations

import ctypes
import functools
import io
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from subprograms import STRICT
from torch import nn

import habana_mp._core as _core
from habana_mp import hmp

SECONDS = 1.5
WATCH = Path(__file__).parents[1] / "cpp/gil_watch.cpp"
BALANCED = hmp.Policy.load("balanced")
INT8 = BALANCED.with_edits("+linear:int8", "+conv1d:weight_int8")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.conv = nn.Embedding(64, 256), nn.LayerNorm(256), nn.Conv1d(256, 256, 3, padding=1)
        self.linears = nn.ModuleList(nn.Linear(256, 256) for _ in range(4))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for linear in self.linears:
            x = self.norm(torch.relu(linear(x)) + x)
        x = self.conv(x.mT).mT
        return torch.nn.functional.scaled_dot_product_attention(x, x, x).float().square().mean()


IDS = torch.randint(0, 64, (2, 24))


def _report(model: Net, **options: object) -> None:
    with hmp.report(**options) as report:
        model(IDS).backward()
    str(report)


def _without_conversion(look: Callable[..., object], model: Net) -> None:
    hmp.revert()
    look(lambda: model(IDS).backward())


def _record(model: Net) -> None:
    with hmp.record("step.rec"):
        model(IDS).backward()


def _offload(model: Net) -> None:
    hmp.cache.offload(model)
    hmp.cache.restore(model)


def _log(model: Net) -> None:
    hmp.revert()
    hmp.convert(policy=INT8, isVerbose=True)
    model(IDS)


ACTIONS: dict[str, Callable[[Net], object]] = {
    "load_state_dict": lambda model: model.load_state_dict(Net().state_dict()),
    "save": lambda model: torch.save(model.state_dict(), io.BytesIO()),
    "storages": lambda model: [weight.untyped_storage().data_ptr() for weight in model.parameters()],
    "cache": lambda model: (hmp.cache.info(), hmp.cache.clear()),
    "offload": _offload,
    "convert": lambda model: (hmp.revert(), hmp.convert(policy=INT8)),
    "log": _log,
    "report": _report,
    "report with values": lambda model: _report(model, values=True),
    "report with 8 bits": lambda model: _report(model, values=True, formats=("weight_int8", "int8")),
    "find_nonfinite": lambda model: hmp.find_nonfinite(lambda: model(IDS).backward()),
    "compare": functools.partial(_without_conversion, hmp.compare),
    "record": _record,
}


def main(action: str, policy: str) -> None:
    """Run in a process of its own, with and without the library that watches."""
    with Path("/proc/self/maps").open() as maps:
        spans = [line.split()[0].split("-") for line in maps if str(_core.__file__) in line]
    watch = getattr(ctypes.CDLL(None), "watch_core", None)
    if watch is not None:
        watch(ctypes.c_void_p(int(spans[0][0], 16)), ctypes.c_void_p(int(spans[-1][1], 16)))
    model = Net()
    # Python alone holds these, as where a user has put a hook there.
    accumulators = [weight.view_as(weight).grad_fn.next_functions[0][0] for weight in model.parameters()]
    hmp.convert(policy=INT8 if policy == "int8" else BALANCED)
    stop = threading.Event()

    def infer() -> None:
        while not stop.is_set():
            with torch.inference_mode():
                model(IDS)

    def infer_in_a_region() -> None:
        while not stop.is_set():
            with hmp.autocast("cpu", policy=INT8), torch.no_grad():
                model(IDS)

    def train() -> None:
        mine = Net()
        optimizer = torch.optim.SGD(mine.parameters(), lr=1e-3)
        while not stop.is_set():
            mine(IDS).backward()
            with hmp.disable_casts():
                optimizer.step()

    threads = [threading.Thread(target=each, daemon=True) for each in (infer, infer, infer_in_a_region, train)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        ACTIONS[action](model)
    stop.set()
    for thread in threads:
        thread.join()
    assert accumulators
    print("ended", file=sys.stderr)
    # With this version a process may abort at its end where a thread has run backward: torch alone does so.
    if torch.__version__.startswith("2.12."):
        os._exit(0)


def run(folder: Path, action: str, policy: str, **environment: str) -> list[str]:
    command = [sys.executable, *STRICT, "-c", "import sys, test_locks; test_locks.main(*sys.argv[1:])", action, policy]
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"} | environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stderr.splitlines()


@pytest.mark.parametrize(("action", "policy"), [("load_state_dict", "int8"), ("save", "balanced")])
def test_weights_are_reloaded_and_saved_while_threads_compute(tmp_path: Path, action: str, policy: str) -> None:
    """Each thread waited for the other."""
    assert run(tmp_path, action, policy) == ["ended"]


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory) -> str:
    library = tmp_path_factory.mktemp("watch") / "gil_watch.so"
    compiler = os.environ.get("CXX") or shutil.which("c++") or "g++"
    subprocess.run([compiler, "-std=c++20", "-O1", "-shared", "-fPIC", "-o", library, WATCH], check=True)
    return str(library)


@pytest.mark.parametrize("action", ACTIONS)
def test_nothing_waits_for_the_gil_under_a_lock(tmp_path: Path, watch: str, action: str) -> None:
    assert run(tmp_path, action, "int8", LD_PRELOAD=watch) == ["ended"]


IMPORT = """
import importlib.abc, sys, threading
import torch
from habana_mp import hmp

class Pauses(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1]:
            sys.meta_path.remove(self)
            begun.set()
            converted.wait(2)

begun, converted = threading.Event(), threading.Event()
def imports():
    import torch._dynamo
thread = threading.Thread(target=imports)
sys.meta_path.insert(0, Pauses())
thread.start()
begun.wait()
model = torch.nn.Linear(4, 4)
hmp.convert()
with hmp.report(values=True):
    model(torch.ones(2, 4)).sum().backward()
with hmp.set_policies(model, {"": "hmp"}):
    model(torch.ones(2, 4))
hmp.revert()
converted.set()
thread.join()
assert torch.compile(model, backend="eager")(torch.ones(2, 4)).dtype == torch.float32
print("ended")
"""


@pytest.mark.parametrize("module", ["torch._dynamo.config", "torch._dynamo.convert_frame", "torch._inductor.utils"])
def test_another_thread_imports_dynamo(module: str) -> None:
    """As the first optimizer of a process does. Each waited for a module that the other imported, and Python raised in one of them."""
    done = subprocess.run(
        [sys.executable, *STRICT, "-c", IMPORT, module], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout, done.stderr) == ("ended\n", "")
