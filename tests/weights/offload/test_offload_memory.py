"""What hmp.cache.offload frees, measured in processes of their own, and what it leaves where it fails in the middle."""

import json
import os
import re
import subprocess
import sys

import pytest
from subprograms import MAPS_EACH_TENSOR

pytestmark = pytest.mark.xdist_group("offload_memory")

# 6 layers of 1536 x 1536: 54 MiB in float32, 27 in bfloat16.
LAYERS, WIDTH = 6, 1536
FLOAT32 = LAYERS * WIDTH * WIDTH * 4 / 2**20
# What a process takes beside its weights: for threads, for results, and pages of libraries that are read for the first time.
ROOM = 8
FREED = 1  # of what the process had before, while the model was measured

PROGRAM = f"""
import json, sys
import torch
from habana_mp import hmp

def resident():
    '''MiB: of memory, and of the file that the weights lie in.'''
    memory = sum(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(("RssAnon", "RssShmem")))
    file, ours = 0, False
    for line in open("/proc/self/smaps"):
        words = line.split()
        if "-" in words[0]:
            # /dev/zero: what forked processes share.
            ours = line.rstrip().endswith("(deleted)") and "/dev/zero" not in line
        elif words[0] == "Rss:" and ours:
            file += int(words[1])
    return memory / 1024, file / 1024

way = sys.argv[1]
torch.set_num_threads(1)
torch.manual_seed(0)
def net():
    return torch.nn.Sequential(*(torch.nn.Linear({WIDTH}, {WIDTH}) for _ in range({LAYERS})))
x = torch.randn(4, {WIDTH})
hmp.convert()
# What the first calls take for themselves is there before.
with torch.no_grad():
    torch.nn.Linear(256, 256)(torch.randn(4, 256))
    hmp.cache.clear()
before, _ = resident()
model = net()
if way == "offload-first":
    hmp.cache.offload(model)
rows = []
with torch.no_grad():
    for _ in range(20):
        y = model(x)
    if way == "offload-later":
        hmp.cache.offload(model)
        y = model(x)
    memory, file = resident()
    result = dict(memory=memory - before, file=file, sum=y.double().sum().item())
    if way.startswith("offload"):
        if len(sys.argv) > 2:
            for p in model.parameters():
                p.mul_(2)
            result["written"] = resident()[0] - before
            hmp.cache.offload(model)
            result["moved"] = resident()[0] - before
        for each in ("first", "second"):
            hmp.cache.clear()
            model(x)
            result[each] = resident()[1]
        hmp.cache.offload(model)
        result["dropped"] = resident()[1]
        hmp.cache.restore(model)
        result["restored"] = resident()[0] - before
print(json.dumps(result))
"""


def measured(*arguments):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **MAPS_EACH_TENSOR},
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def in_memory():
    return measured("convert")


def test_copies_take_half_as_much_again(in_memory):
    """What there is to free. Without this the bounds below could hold for nothing."""
    assert 1.5 * FLOAT32 - FREED <= in_memory["memory"] <= 1.5 * FLOAT32 + ROOM
    assert in_memory["file"] == 0


@pytest.mark.parametrize("way", ["offload-first", "offload-later"])
def test_an_offloaded_model_takes_what_its_copies_take(way, in_memory):
    result = measured(way)
    assert result["sum"] == in_memory["sum"]
    assert FLOAT32 / 2 <= result["memory"] <= FLOAT32 / 2 + ROOM
    # 17 samples of each weight are read at every use.
    assert result["file"] <= FLOAT32 / 16
    # The first cast after the move drops the pages that it has read, the others leave them to the system, and to the next move.
    casts = [result["first"], result["second"]]
    if way == "offload-later":
        assert casts.pop(0) <= FLOAT32 / 16
    assert min(casts) >= FLOAT32 * 15 / 16
    assert result["dropped"] <= FLOAT32 / 16
    assert 1.5 * FLOAT32 - FREED <= result["restored"] <= 1.5 * FLOAT32 + ROOM


def test_what_is_written_takes_memory_until_it_is_moved():
    result = measured("offload-first", "write")
    assert 1.5 * FLOAT32 - FREED <= result["written"] <= 1.5 * FLOAT32 + ROOM
    assert FLOAT32 / 2 <= result["moved"] <= FLOAT32 / 2 + ROOM


FULL_DISK = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (5 << 20, 5 << 20))  # as a disk with 5 MiB left
"""

FULL_MAP = """
import mmap
protections = [mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE]
held = []
try:
    while True:
        held.append(mmap.mmap(-1, 4096, prot=protections[len(held) % 2]))
except OSError:
    del held[-20:]  # room for some of the weights
"""

FAILS = """
import torch
from habana_mp import hmp

model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(10)))
before = {name: value.clone() for name, value in model.state_dict().items()}
LIMIT
try:
    hmp.cache.offload(model)
except OSError as error:
    print(type(error).__name__, error.errno, error)
held = None
maps = open("/proc/self/maps").read()
print("in a file:", maps.count("(deleted)") - maps.count("/dev/zero (deleted)"))
print(all(torch.equal(value, before[name]) for name, value in model.state_dict().items()))
hmp.cache.restore(model)
print(all(torch.equal(value, before[name]) for name, value in model.state_dict().items()))
"""


@pytest.mark.parametrize(
    ("limit", "error"),
    [
        (FULL_DISK, "OSError 27 [Errno 27] hmp.cache.offload cannot move 41861120 bytes there: File too large: '"),
        (
            FULL_MAP,
            "OSError 12 [Errno 12] hmp.cache.offload cannot move 41861120 bytes there: 10 weights take 20 memory mappings; this process has ",
        ),
    ],
    ids=["full-disk", "too-many-mappings"],
)
def test_what_cannot_be_moved_stays_in_memory(limit, error):
    program = FAILS.replace("LIMIT", limit)
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert re.sub(r"move \d+ bytes", "move 41861120 bytes", lines[0]).startswith(error), lines
    assert lines[1:] == ["in a file: 0", "True", "True"]
