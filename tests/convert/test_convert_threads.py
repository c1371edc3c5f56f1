"""convert and revert while other threads compute or convert. tests/scope/test_fork.py has threads that fork."""

from __future__ import annotations

import threading

import torch
import torch.nn.functional as F
from namespaces import BF16, F16, F32, changed, snapshot
from torch import nn

from habana_mp import hmp


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
