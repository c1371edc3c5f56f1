"""The weight cache on a device with streams, on a machine without one: streams.cpp is a device whose current stream the test chooses.

It shows which stream casts for itself, and what is kept while a graph is captured. Whether CUDA's streams then wait for each other, a GPU shows alone
(test_streams_and_graphs.py).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils import cpp_extension

pytestmark = pytest.mark.xdist_group("streams_without_gpu")

HERE = Path(__file__).parent
can_capture = hasattr(torch.Stream, "is_capturing")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Compiled, which takes half a minute."""
    path = tmp_path_factory.mktemp("device") / "streams.so"
    includes = [f"-I{folder}" for folder in cpp_extension.include_paths()]
    libraries = [f"-L{folder}" for folder in cpp_extension.library_paths()]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    command = ["c++", "-std=c++20", "-O0", "-shared", "-fPIC", "-w", abi, *includes, HERE / "streams.cpp", "-o", path]
    done = subprocess.run(
        [*command, *libraries, "-ltorch", "-ltorch_cpu", "-lc10"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return path


# The device is registered for the whole process, so each test has one of its own.
PROGRAM = """
import sys
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import backend_registration as backends
from habana_mp import hmp

torch.ops.load_library(sys.argv[1])
torch.utils.rename_privateuse1_backend("streams")
torch._register_device_module("streams", backends._DummyBackendModule())
torch._C._acc.register_python_privateuseone_hook(backends._DummyPrivateUse1Hook())
use, capture = torch.ops.test_streams.use, torch.ops.test_streams.capture
torch.manual_seed(0)
p, x = nn.Parameter(torch.randn(128, 128).to("streams")), torch.randn(4, 128).to("streams")
assert p.device.type == x.device.type == "streams"
hmp.convert()

def product():
    with torch.no_grad():
        found = F.linear(x, p).cpu()
    assert torch.equal(found, F.linear(x.cpu().bfloat16(), p.detach().cpu().bfloat16()))

def counts():
    info = hmp.cache.info()
    return info.misses, info.refreshed, info.hits, info.entries
"""

CASES = {
    "a stream uses its own copy": ("product(); product(); product()", (1, 0, 2, 1)),
    "another stream casts for itself": ("product(); use(1); product(); product()", (2, 0, 1, 1)),
    "streams that take turns cast at each turn": ("[(use(turn % 2), product()) for turn in range(4)]", (4, 0, 0, 1)),
    "a weight that has changed is cast into the same memory": (
        "product(); p.data.mul_(2); product(); product()",
        (1, 1, 1, 1),
    ),
    "not into memory that another stream may read": ("product(); p.data.mul_(2); use(1); product()", (2, 0, 0, 1)),
    "nothing is kept while a graph is captured": ("capture(True); product(); product()", (0, 0, 0, 0)),
    "nothing is taken then": ("product(); capture(True); product(); capture(False); product()", (1, 0, 1, 1)),
}


@pytest.mark.unsanitized(reason="it loads a library without the sanitizers")
@pytest.mark.skipif(not hasattr(torch._C._acc, "register_python_privateuseone_hook"), reason="this torch has no hooks")
@pytest.mark.parametrize("name", CASES)
def test_copies_and_streams(library, name):
    steps, expected = CASES[name]
    if "capture" in steps and not can_capture:
        pytest.skip("this torch knows of captures on CUDA alone")
    program = f"{PROGRAM}\n{steps}\nassert counts() == {expected}, counts()"
    done = subprocess.run([sys.executable, "-c", program, library], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
