"""Weights that products read from end to end in each call lie in pages of 2 MiB, where Linux gives them, and take no more memory."""

import json
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

MODES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
COLLAPSE = 25  # of Linux 6.1
PAGE = 2 * 2**20

# argv: the edit; outputs of each of 8 layers. Prints bytes: of the copies, and by how much pages of 2 MiB and all memory grew with them.
PROGRAM = """
import json, sys
import torch
from habana_mp import hmp

def now(what):
    return int(open("/proc/self/smaps_rollup").read().split(what + ":")[1].split()[0]) * 1024

torch.set_num_threads(1)
def net(*sizes):
    return torch.nn.Sequential(*(torch.nn.Linear(1024, size, bias=False) for size in sizes)).requires_grad_(False)
def call(model):
    return [layer(x) for layer in model]
x = torch.randn(1, 1024)
hmp.convert(policy=hmp.Policy.load("hmp").with_edits(*sys.argv[1:2]))
# What the first calls take for themselves is there before, a trial of the kernels among it.
with torch.no_grad():
    for _ in range(10):
        call(net(int(sys.argv[2])))
    hmp.cache.clear()
    model = net(*[int(sys.argv[2])] * 8)
    before = {what: now(what) for what in ("AnonHugePages", "Rss")}
    for _ in range(10):
        call(model)
    after = {what: now(what) for what in before}
info = hmp.cache.info()
print(json.dumps([info.packed, info.bytes, *(after[what] - before[what] for what in before)]))
"""


def gives_huge_pages() -> bool:
    """On demand: where all memory is in them, nothing shows."""
    if "[madvise]" not in MODES.read_text():
        return False
    memory = mmap.mmap(-1, 3 * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:] = bytes([1]) * 3 * PAGE
    try:
        memory.madvise(COLLAPSE)
    except OSError:
        return False
    return True


# Copies of 4 and 8 MiB, and those smaller than a page, which share one with their neighbours.
@pytest.mark.skipif(
    not MODES.exists() or not gives_huge_pages(),
    reason="this Linux gives no huge pages on demand, or gives them to all",
)
@pytest.mark.parametrize(
    ("edit", "outputs"),
    [
        pytest.param("+linear:lower", 4096, id="bfloat16, four pages each"),
        pytest.param("+linear:int8", 4096, id="int8, two pages each"),
        pytest.param("+linear:weight_int8", 1024, id="weight_int8, half a page each"),
    ],
)
def test_copies_lie_in_huge_pages(edit, outputs):
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "LD_PRELOAD"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, edit, str(outputs)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=variables,
    )
    assert done.returncode == 0, done.stderr
    packed, copies, huge, memory = json.loads(done.stdout)
    if edit == "+linear:lower" and not packed:
        pytest.skip("this CPU packs no bfloat16, or was faster without")
    assert packed == 8
    # The ends of what lies together may share their page with memory that is not there, and malloc reuses such pages of what was freed before.
    assert huge >= copies / 3, (copies, huge)  # two whole pages were a little less than half
    assert memory <= copies + 2 * PAGE, (copies, memory)
