"""A process forked while another thread holds a lock of the package: it goes on, and what the lock guards is whole in it."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from namespaces import BF16
from torch import nn

from habana_mp import _core, hmp
from habana_mp._feature import Feature
from habana_mp._torch_private import CPU

FORKS = 40
X = torch.ones(64, 64)
ROWS = torch.arange(64)
NUMBERS = itertools.count()


def opens_reports():
    with hmp.report() as report:
        torch.mm(X, X)
        nn.Identity()(X)
    assert report.to_dict()["rows"]


def converts():
    hmp.convert()
    hmp.revert()


# What a thread and a forked process do at once is in no op of oneDNN: a thread holds the lock of its kernels while it looks for one.
LOOKS_UP = hmp.Policy.from_ops(lower=["embedding"])


def uses_weights():
    with torch.no_grad(), hmp.autocast("cpu", policy=LOOKS_UP):
        assert F.embedding(ROWS, nn.Parameter(torch.ones(64, 64))).dtype == BF16
    hmp.cache.info()


def offloads_weights():
    model = nn.utils.skip_init(
        nn.Linear, 256, 256
    )  # random numbers have a lock of torch's own, which the child would inherit
    assert hmp.cache.offload(model).weights == 1
    hmp.cache.restore(model)


def enters_regions():
    policy = hmp.Policy.from_ops(lower=["mul"], name=f"fork{next(NUMBERS)}")
    with hmp.autocast("cpu", policy=policy):
        assert torch.mul(X, X).dtype == BF16


def frees_large_results():
    hmp.cast(torch.ones(2048, 2048), BF16)


def asks_for_a_private_name():
    assert Feature("nothing", mm="torch:mm").works


def fork(work):
    """The wait status of a forked process that does the work. Of one that hangs, the alarm makes an end."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(60)
    try:
        torch.set_num_threads(1)
        work()
        os._exit(0)
    finally:
        os._exit(1)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(
    "work",
    [
        opens_reports,
        converts,
        uses_weights,
        offloads_weights,
        enters_regions,
        frees_large_results,
        asks_for_a_private_name,
    ],
    ids=lambda work: work.__name__.replace("_", " "),
)
def test_a_child_forked_while_a_thread(work):
    stop = threading.Event()

    def until_stopped():
        while not stop.is_set():
            work()

    work()
    thread = threading.Thread(target=until_stopped)
    thread.start()
    try:
        assert {fork(work) for _ in range(FORKS)} == {0}
    finally:
        stop.set()
        thread.join()


def test_a_cast_takes_no_lock_of_torch():
    """``hasCallbacks`` takes one to count profilers. A thread that cast held it at one fork in some thousand: its name in the core tells more."""
    core = Path(_core.__file__).read_bytes()
    assert b"_ZN2at27getStepCallbacksUnlessEmpty" in core  # takes none, and is found this way
    assert b"_ZN2at12hasCallbacks" not in core


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_forked_during_a_conversion_has_all_of_it_or_none():
    original = torch.mm
    stop = threading.Event()

    def until_stopped():
        while not stop.is_set():
            converts()

    def looks():
        assert hmp.is_converted() == (torch.mm is not original) == (torch.mm(X, X).dtype == BF16)
        hmp.convert()
        assert torch.mm(X, X).dtype == BF16
        hmp.revert()
        assert torch.mm is original

    thread = threading.Thread(target=until_stopped)
    thread.start()
    try:
        assert {fork(looks) for _ in range(FORKS)} == {0}
    finally:
        stop.set()
        thread.join()


WITH_THREADS = """
import os, signal, sys, torch
from habana_mp import _core, hmp

torch.set_num_threads(2)
_core._testing.measure_choices(False)  # the kernel of this package
hmp.convert()
x, w = torch.randn(1 << 20), torch.nn.Parameter(torch.randn(1024, 1024))
few = torch.randn(4, 1024)

def work():  # bytes: torch.equal waits for the threads
    if sys.argv[1] == "hash":
        return _core.hash_of_numbers(x)
    with torch.no_grad():
        made = hmp.cast(x, torch.bfloat16) if sys.argv[1] == "cast" else torch.nn.functional.linear(few, w)
    return made.view(torch.int16).numpy().tobytes()

before = work()
if (child := os.fork()) == 0:
    signal.alarm(60)
    os._exit(0 if work() == before else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.unsanitized(reason="a program of its own")
@pytest.mark.parametrize("kernel", ["cast", "linear", "hash"])
def test_a_child_of_a_process_whose_threads_have_worked(kernel):
    """The child has not the threads of OpenMP, and would wait for them. In torch's own products it does."""
    if kernel == "linear" and "avx512_bf16" not in _core.cast_variants():
        pytest.skip("no kernel of this package computes products on this CPU")
    if kernel == "linear" and CPU.works and CPU.amx():
        pytest.skip("on CPUs with AMX oneDNN computes the product: it packs weights in a layout of its own there")
    done = subprocess.run([sys.executable, "-c", WITH_THREADS, kernel], capture_output=True, text=True, check=False)
    assert done.stdout == "0\n", done.stderr


def test_a_thread_that_holds_a_lock_forks():
    """The log's stream may do anything while convert runs, for example start a process."""

    class Forking:
        def write(self, text):
            assert fork(hmp.is_converted) == 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", Forking())
        hmp.convert(isVerbose=True)
