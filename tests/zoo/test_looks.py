"""A short form of what ``make zoo`` runs under the instruments: they change nothing, end no process, and memory does not grow (D50)."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import habana_mp._core as _core
from habana_mp._torch_private import VERSION
from zoo import EXACT_MEMORY, looked, results
from zoo.cases import Outcome, Run, layers, looks

ROOT = Path(__file__).parent.parent.parent
LABELS = """
    op/addmm op/nn_functional_dropout op/nn_functional_batch_norm op/nn_functional_scaled_dot_product_attention op/index_put op/geqrf
    op/sparse_sampled_addmm op/nn_functional_linear_cross_entropy_chunked op/uniform op/empty op/nn_functional_embedding op/svd
    op/nn_functional_embedding_bag op/nn_functional_rrelu op/istft op/masked_scatter op/_native_batch_norm_legit op/to_sparse op/nn_functional_ctc_loss
    module/nn_BatchNorm2d module/nn_LSTM module/nn_MultiheadAttention module/nn_Embedding module/nn_CrossEntropyLoss module/nn_LazyConv2d
    architecture/bert architecture/llama
""".split()
if VERSION < (2, 13):
    LABELS.remove("op/nn_functional_linear_cross_entropy_chunked")  # torch has it since then

# Prints what workers found, each case in a process of its own.
PROGRAM = """
import fnmatch, sys
from zoo import results, workers
from zoo.cases import looks

workers.preload()
wanted = sys.argv[1].split("|")
cases = [case for case in looks.cases() if case.label in wanted or case.kind in wanted]
for case, runs in workers.finished(cases, jobs=1):
    sys.stdout.write(results.line(case, runs))
"""


def found_in(*wanted: str) -> dict[str, list[Run]]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "|".join(wanted)],
        cwd=ROOT,
        env=os.environ | EXACT_MEMORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {
        line["case"]: [Run(**{**run, "outcomes": [Outcome(*each) for each in run["outcomes"]]}) for run in line["runs"]]
        for line in lines
    }


@pytest.mark.parametrize("label", [*LABELS, "layer/LSTM", "layer/Conv2d"])
def test_instruments_change_nothing(label):
    found = found_in(label)
    assert found
    assert sum(row.same for row in looked.rows(found)) > 0
    # Before torch 2.13 a thread keeps the name of each step that an instrument has run (docs/limits.md).
    grows = VERSION < (2, 13)
    assert [
        str(fault) for fault in looked.faults(found) if not fault.reason and not (grows and fault.what == "grew")
    ] == []


# --- What the zoo sees: faults that are planted


def planted(fault):
    """An instrument that runs the step and then does what none may."""

    def look(step):
        step()
        FAULTS[fault]()

    return look


class Counted(torch.nn.Linear):
    """The layer that is disturbed; the last one that was made."""

    last: Counted

    def __init__(self):
        super().__init__(4, 4)
        self.register_buffer("calls", torch.zeros(()))
        Counted.last = self

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


KEPT: list[torch.Tensor] = []


def fail():
    raise ValueError("planted")


FAULTS = {
    "a gradient": lambda: Counted.last.weight.grad.add_(1),
    "a weight": lambda: Counted.last.weight.data.add_(1),
    "a buffer": lambda: Counted.last.calls.add_(1),
    "random numbers of torch": lambda: torch.rand(1),
    "random numbers of Python": random.random,
    "random numbers of NumPy": np.random.rand,
    "an error": fail,
    "memory": lambda: KEPT.append(torch.zeros(1000)),
    "nothing": lambda: None,
}
SEEN = {
    "a gradient": ["changed: gradient of weight"],
    "a weight": ["changed: weight weight"],
    "a buffer": ["changed: buffer calls"],
    "random numbers of torch": ["changed: random state of torch"],
    "random numbers of Python": ["changed: random state of Python"],
    "random numbers of NumPy": ["changed: random state of NumPy"],
    "an error": ["raised: ValueError: planted"],
    "memory": ["grew"],
    "nothing": [],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_seen(fault, monkeypatch):
    monkeypatch.setattr(looks, "ONCE", {"values": planted(fault)})
    monkeypatch.setattr(looks, "VARIANTS", [("values", looks.Variant("autocast", "hmp"))])
    monkeypatch.setitem(layers.LAYERS, "counted", (Counted, ((4, 4),)))
    (case,) = (each for each in looks.cases() if each.label == "layer/counted")
    runs = [run for run in case.runs(frozenset()) if isinstance(run, Run)]
    assert [each.what for each in looked.faults({case.label: runs})] == SEEN[fault]
    KEPT.clear()


def test_an_empty_tensor_is_the_only_thing_that_may_differ():
    found = {"op/empty": [Run("values", "convert", "float32", [Outcome("changed", "result 0")])]}
    assert all(fault.reason for fault in looked.faults(found))
    found = {"op/emptied": found.pop("op/empty")}
    assert not any(fault.reason for fault in looked.faults(found))


def test_the_page_has_every_finding():
    runs = [
        Run("none", "", "float32", [Outcome("ran", "")]),
        Run("values", "convert", "float32", [Outcome("ran", ""), Outcome("ran", "not repeatable")]),
        Run("compare", "none", "float32", [Outcome("changed", "result 0")]),
        Run("values", "convert 50 rounds", "float32", [Outcome("grew", "400 bytes")]),
        Run("tune", "none", "float32", [Outcome("process", "Aborted")]),
    ]
    shown = looked.page({"op/mm": runs}, "abcdef012")
    for line in (
        " on the CPU, at commit abcdef012. ",
        "| op | values | 1 | 2 | 1 | 1 | 0 | 0 | 0 | 1 | 1 |",
        "| op | compare | 1 | 1 | 0 | 0 | 1 | 0 | 0 | 0 | 0 |",
        "| op | tune | 1 | 1 | 0 | 0 | 0 | 0 | 1 | 0 | 0 |",
        "| compare | changed: result 0 | `op/mm` |",
        "| tune | process: Aborted | `op/mm` |",
        "3 kinds of faults",
    ):
        assert line in shown
    assert "The instruments leave programs as they are" in looked.page({"op/mm": runs[:2]}, "abcdef012")


def test_results_are_of_one_core(monkeypatch, tmp_path) -> None:
    """They were kept when the core was built anew."""
    core = tmp_path / "_core.so"
    monkeypatch.setattr(_core, "__file__", str(core))
    files = []
    for build in (b"1", b"2"):
        core.write_bytes(build)
        files.append(results.path("instruments"))
    assert files[0] != files[1]
