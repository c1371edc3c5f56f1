"""convert and revert while other threads compute, convert or fork."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading

import torch
import torch.nn.functional as F
from namespaces import BF16, F16, F32, changed, snapshot
from torch import nn

from habana_mp import hmp

FORKED = """
    import os, signal, sys, threading, warnings
    import torch
    from habana_mp._convert import conversion
    from habana_mp import hmp

    warnings.simplefilter("ignore")
    hmp.convert()
    held, done = threading.Event(), threading.Event()

    def hold():
        with conversion._lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        hmp.revert()
        hmp.convert("O2")
        os._exit(0 if hmp.is_converted() else 1)
    status = os.waitpid(child, 0)[1]
    done.set()
    thread.join()
    hmp.revert()
    sys.exit(status != 0)
"""


def test_a_child_forked_while_another_thread_converts():
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FORKED)], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr


def test_threads_that_compute_while_another_converts():
    stop = threading.Event()
    wrong: list[object] = []
    linear, norm = nn.Linear(4, 4), nn.LayerNorm(4)
    x = torch.ones(4, 4)
    large = torch.ones(300, 300)  # casts of this size let go of the GIL

    def compute():
        try:
            while not stop.is_set():
                results = [
                    torch.mm(x, x),
                    x @ x,
                    linear(x),
                    norm(x),
                    torch.cat([x, x]),
                    1 / x,
                    F.softmax(x, 0),
                    F.relu(x.clone(), inplace=True),
                    torch.mm(large, large),
                    F.mse_loss(x, x),
                ]
                wrong.extend(result.dtype for result in results if result.dtype not in (F32, BF16, F16))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=compute) for _ in range(4)]
    for thread in threads:
        thread.start()
    for turn in range(30):
        hmp.convert(policy=("hmp", "hmp-o2", "torch-cuda")[turn % 3])
        torch.mm(x, x)
        hmp.revert()
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_two_threads_that_convert(pristine):
    wrong = []

    def work(preset):
        try:
            for _ in range(10):
                hmp.convert(policy=preset)
                hmp.revert()
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(preset,)) for preset in ("hmp", "hmp-o2", "torch-cpu")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    hmp.revert()
    assert changed(pristine, snapshot()) == []
