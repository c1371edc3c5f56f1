"""An interrupt at any moment of a comparison leaves nothing behind that looks at calls."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

INTERRUPTED = """
import signal
import torch
import habana_mp._core as _core
from habana_mp import hmp

model, x = torch.nn.Linear(8, 8), torch.randn(4, 8)
hmp.compare(lambda: model(x), None, "hmp")  # all is imported

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
interrupted = 0
for number in range(150):
    try:
        signal.setitimer(signal.ITIMER_REAL, 2e-4 + 2e-5 * number)
        hmp.compare(lambda: model(x), None, "hmp")
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
torch.set_grad_enabled(True)  # an interrupt inside of torch.no_grad may leave it off
assert interrupted > 20, interrupted
assert _core.probe_name() == ""
assert hmp.compare(lambda: model(x), "hmp", "hmp").same
print("looks again")
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers of signals")
def test_interrupts_leave_nothing_that_looks():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)
    assert done.stdout == "looks again\n", done.stderr
