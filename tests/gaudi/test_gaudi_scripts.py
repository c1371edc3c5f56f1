"""The scripts of examples/gaudi run as they are: in float32, under habana-mp run, and as two processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from habana_mp import hmp

pytestmark = pytest.mark.xdist_group("gaudi_scripts")

FOLDER = Path(__file__).parent.parent.parent / "examples" / "gaudi"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
STEPS = {"mnist": 15, "resnet": 15, "bert_lamb": 10, "vit": 15, "dlrm": 20}
# A bfloat16 has 8 bits: this is four units of its last place.
TOLERANCE = 4 * 2**-8
# Where a process sees half a batch, the norms of ResNet and the mean over BERT's masked words are those of the half.
HALVES = {"resnet": 0.15, "bert_lamb": 0.03}

# Starting a process takes longer than a script, so one runs them all, each as __main__.
ALL = f"""
import runpy, sys
sys.path.insert(0, {str(FOLDER)!r})
arguments = sys.argv[1:]
for name, steps in {STEPS!r}.items():
    print("==", name, flush=True)
    sys.argv = [name + ".py", "--steps", str(steps), *arguments]
    runpy.run_path({str(FOLDER)!r} + "/" + name + ".py", run_name="__main__")
"""


def run(*command):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}
    environment.pop("HABANA_MP_LOG", None)
    done = subprocess.run(
        [sys.executable, *map(str, command)], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def losses(text):
    return [float(loss) for loss in re.findall(r"^step +\d+  loss (\S+)$", text, re.MULTILINE)]


def parts(text):
    _, *found = re.split(r"^== (\w+)$", text, flags=re.MULTILINE)
    return dict(zip(found[::2], found[1::2], strict=True))


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("scripts") / "all.py"
    path.write_text(ALL)
    return path


@pytest.fixture(scope="module")
def float32(script):
    return parts(run("-m", "habana_mp", "run", script))


@pytest.fixture(scope="module")
def mixed(script):
    return parts(run("-m", "habana_mp", "run", script, "--hmp", "--use_lazy_mode", "--hmp-verbose"))


def test_every_script_is_here():
    assert {path.stem for path in FOLDER.glob("*.py")} == {"common", *STEPS}
    assert set(re.findall(r"^\| \[(\w+)\.py\]\(\1\.py\)", (FOLDER / "README.md").read_text(), re.MULTILINE)) == {*STEPS}


def test_the_lists_name_ops_of_torch():
    lists = sorted(FOLDER.glob("ops_*.txt"))
    assert len(lists) == 2 * len(STEPS)
    for bf16 in FOLDER.glob("ops_bf16_*.txt"):
        hmp.convert("O1", bf16, bf16.with_name(bf16.name.replace("bf16", "fp32")), strict=True)


@pytest.mark.parametrize("name", STEPS)
def test_mixed_precision(name, float32, mixed):
    text = mixed[name]
    assert losses(text) == pytest.approx(losses(float32[name]), rel=TOLERANCE)
    assert losses(text) != losses(float32[name])
    levels = re.findall(r"^hmp:opt_level (\w+)$", text, re.MULTILINE)
    assert levels == (["O2", "O1"] if name == "vit" else ["O1"])
    assert len(re.findall(r"^casting  <.*linear.*> to_bf16$", text, re.MULTILINE)) >= STEPS[name]


@pytest.mark.parametrize("name", STEPS)
def test_float32_learns_and_casts_nothing(name, float32):
    first, *_, last = losses(float32[name])
    assert last < first
    assert "casting" not in float32[name]


@pytest.mark.parametrize("name", STEPS)
def test_two_processes(name, float32):
    text = run(*TORCHRUN, "-m", "habana_mp", "run", FOLDER / f"{name}.py", "--steps", "5", "--hmp")
    assert losses(text) == pytest.approx(losses(float32[name])[:1], rel=HALVES.get(name, TOLERANCE))
