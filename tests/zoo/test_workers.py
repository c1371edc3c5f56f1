"""A case that ends its process is a result, and the other variants of the case run all the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

# Of three variants of each case the second one ends the process.
PROGRAM = """
import functools, mmap, os, signal
from zoo import workers
from zoo.cases import Began, Case, Outcome, Run

workers.MOST_SECONDS = 2
workers.MOST_BYTES = 1 << 30
# What a process has reserved before, as the address sanitizer does, is not what a case takes.
reserved = mmap.mmap(-1, 4 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

def fail():
    raise ValueError

ENDS = {
    "crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "error of the case itself": fail,
    "exit": lambda: os._exit(3),
    "hang": signal.pause,
    "too much memory": lambda: bytearray(2 << 30),
}

def runs(name, skip):
    for policy in ("first", "bad", "last"):
        if ("convert", policy) not in skip:
            yield Began("convert", policy)
            if policy == "bad":
                ENDS[name]()
            yield Run("convert", policy, "float32", [Outcome("ran", "float32")])

cases = [Case("op", name, functools.partial(runs, name)) for name in ENDS]
for case, found in sorted(workers.finished(cases, jobs=2), key=lambda each: each[0].label):
    print(case.label, *(f"{run.policy}={run.outcomes[0].text}" for run in found), sep=", ")
"""


@pytest.mark.unsanitized(reason="the sanitizer reports what ends a process")
def test_what_ends_a_process_is_a_result():
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "op/crash, first=float32, bad=Segmentation fault, last=float32",
        "op/error of the case itself, first=float32, bad=exit status 1, last=float32",
        "op/exit, first=float32, bad=exit status 3, last=float32",
        "op/hang, first=float32, bad=no result in 2 s, last=float32",
        "op/too much memory, first=float32, bad=exit status 1, last=float32",
    ]
