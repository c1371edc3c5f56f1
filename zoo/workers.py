"""Cases in forked processes: one that crashes, hangs or takes all memory is a row of the page, not the end of the run."""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import resource
import signal
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from zoo.cases import Began, Case, Outcome, Run

# Of a variant, times the patience with its case. The slowest takes some 10 seconds on a machine that does nothing else.
MOST_SECONDS = 120
# Of what a worker adds to the memory that it begins with.
MOST_BYTES = 8 << 30

_SHARED = (
    "torch.testing._internal.common_methods_invocations",
    "torch.testing._internal.common_modules",
    "transformers.generation",
    "transformers.masking_utils",
    "transformers.modeling_layers",
    "transformers.models.auto.modeling_auto",
)
_FORK = multiprocessing.get_context("fork")


@dataclass
class _Work:
    """A case that runs in a process."""

    case: Case
    runs: list[Run] = field(default_factory=list)
    skip: frozenset[tuple[str, str]] = frozenset()
    began: Began = Began("none", "")  # noqa: RUF009 - a tuple
    deadline: float = 0
    process: Any = None


def preload() -> None:
    """What all children need is imported once. No backward may run here: its threads do not survive a fork."""
    torch.set_num_threads(1)
    for name in _SHARED:
        importlib.import_module(name)
    gc.freeze()


def finished(cases: list[Case], jobs: int) -> Iterator[tuple[Case, list[Run]]]:
    """Each case with its runs, as soon as it is done."""
    waiting = [_Work(case) for case in reversed(cases)]
    running: dict[Connection, _Work] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                work = waiting.pop()
                running[_start(work)] = work
            nearest = min(work.deadline for work in running.values())
            ready = wait(list(running), timeout=max(0, nearest - time.monotonic()))
            late = [end for end, work in running.items() if end not in ready and work.deadline < time.monotonic()]
            for end in [*ready, *late]:
                work = running[end]
                if end in ready and _receive(end, work):
                    continue
                del running[end]
                if _ended(end, work, hung=end in late):
                    yield work.case, work.runs
                else:
                    waiting.append(work)
    finally:
        for work in running.values():
            work.process.kill()


def _start(work: _Work) -> Connection:
    ours, theirs = _FORK.Pipe(duplex=False)
    work.process = _FORK.Process(target=_child, args=(work.case, work.skip, theirs))
    work.process.start()
    theirs.close()
    work.deadline = time.monotonic() + MOST_SECONDS * work.case.patience
    return ours


def _child(case: Case, skip: frozenset[tuple[str, str]], end: Connection) -> None:
    most = _data_bytes() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silence, stream)
    warnings.simplefilter("ignore")
    for message in case.runs(skip):
        end.send(message)
    end.send(None)


def _data_bytes() -> int:
    """What the limit counts, in use or not: the address sanitizer reserves terabytes, so that 8 GiB in all would end each worker."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData:"))


def _receive(end: Connection, work: _Work) -> bool:
    """False where the child has nothing more to send, or died."""
    try:
        message = end.recv()
    except EOFError:
        return False
    if message is None:
        work.began = Began("", "")
        return False
    if isinstance(message, Run):
        work.runs.append(message)
    else:
        work.began = message
        work.deadline = time.monotonic() + MOST_SECONDS * work.case.patience
    return True


def _ended(end: Connection, work: _Work, hung: bool) -> bool:
    """True where all variants ran. What ended the process is the outcome of the variant that it was in; the others run again."""
    end.close()
    if hung:
        work.process.kill()
    work.process.join()
    if work.began == Began("", ""):
        return True
    code = work.process.exitcode
    text = (
        f"no result in {MOST_SECONDS * work.case.patience} s"
        if hung
        else signal.strsignal(-code)
        if code < 0
        else f"exit status {code}"
    )
    work.runs = [run for run in work.runs if (run.front, run.policy) != work.began]
    work.runs.append(Run(*work.began, "float32", [Outcome("process", str(text))]))
    work.skip |= {tuple(work.began), *((run.front, run.policy) for run in work.runs)}
    return work.began.front == "none"
