"""The tool that writes the preset balanced runs, and what it writes is a policy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from habana_mp import hmp

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.unsanitized(reason="it measures, and calls programs that have no sanitizers")
def test_a_quick_run_writes_a_policy(tmp_path):
    command = [
        sys.executable,
        "-m",
        "tools.tune_presets",
        "--models",
        "MLP",
        "--seconds",
        "0",
        "--output",
        tmp_path / "made",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["bfloat16"] * 2 + ["float16"] * 2
    made, shipped = hmp.Policy.load(tmp_path / "made"), hmp.Policy.load("balanced")
    assert (made.name, made.rest, made.low_dtypes) == (shipped.name, shipped.rest, shipped.low_dtypes)
    # What costs decide differs from run to run; what torch's samples and the families decide does not.
    assert made.lists["lower"] == shipped.lists["lower"]
    assert {"cos", "sum", "exp", "cross_entropy", "layer_norm"} <= {*made.lists["fp32"]}
    assert "max_pool3d" not in made.lists["fp32"]
    assert "linear  # bf16: error " in (tmp_path / "made" / "lower.txt").read_text()
