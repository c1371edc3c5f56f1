"""habana-mp record, and habana-mp compare with recordings."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from habana_mp import hmp

TRAIN = """
import random, sys
import numpy, torch
from habana_mp import hmp
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))
x = torch.randn(4, 8) * random.random() * numpy.random.rand()
with hmp.autocast("cpu", policy="hmp", enabled="--region" in sys.argv):
    loss = model(x).float().square().mean()
loss.backward()
print("trained", *sys.argv[1:])
if "--exit" in sys.argv:
    sys.exit(3)
"""


def call(command, *arguments):
    Path("train.py").write_text(TRAIN)
    return subprocess.run(
        [sys.executable, "-m", "habana_mp", command, *arguments], capture_output=True, text=True, check=False
    )


def test_a_script_is_recorded_and_compared(here):
    for output, policy in (("a.rec", "none"), ("b.rec", "none"), ("c.rec", "hmp")):
        done = call("record", "--policy", policy, "train.py", "--steps", "1", "--output", output)
        assert (done.stdout, done.stderr, done.returncode) == ("trained --steps 1\n", "", 0)
    done = call("compare", "a.rec", "b.rec")
    assert (done.stdout, done.returncode) == ("", 0), done.stderr
    assert "a: a.rec\nb: b.rec\nThe same numbers in " in done.stderr
    done = call("compare", "--json", "found.json", "a.rec", "c.rec")
    assert done.returncode == 1
    assert "first difference\n  mul, in the forward pass: a float32, float64, b bfloat16, float64" in done.stderr
    assert json.loads(Path("found.json").read_text())["names"] == ["a.rec", "c.rec"]
    assert call("compare", "--rtol", "0.1", "a.rec", "c.rec").returncode == 0
    assert hmp.compare("a.rec", "b.rec").same


def test_a_script_beside_a_recording(here):
    call("record", "--policy", "hmp", "--output", "a.rec", "train.py")
    done = call("compare", "--policy", "hmp", "--with", "a.rec", "train.py")
    assert (done.stdout, done.returncode) == ("trained\n", 0), done.stderr
    assert "a: a.rec\nb: hmp\nThe same numbers in " in done.stderr
    done = call("compare", "train.py", "--with", "a.rec", "--policy", "torch-cpu", "--edit")
    assert "a: a.rec\nb: torch-cpu" in done.stderr


def test_none_casts_nothing_in_regions(here):
    call("record", "--policy", "none", "--output", "a.rec", "train.py")
    call("record", "--policy", "none", "--output", "b.rec", "train.py", "--region")
    assert hmp.compare("a.rec", "b.rec").same


def test_an_output_before_the_script_leaves_the_one_of_the_script(here):
    done = call("record", "--output", "a.rec", "train.py", "--output", "mine")
    assert (done.stdout, done.returncode) == ("trained --output mine\n", 0), done.stderr
    assert Path("a.rec").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["record", "train.py"], 2, "Error: --output is missing: the file for the recording, such as step.rec"),
        (["record", "--output", "a", "train.py"], 2, "a': the name of a recording ends in .rec"),
        (["record", "--output", "no/a.rec", "train.py"], 2, "--output no/a.rec: No such file or directory"),
        (["record", "train.py", "--output"], 2, "--output takes a file"),
        (["record", "--output", "a.rec", "train.py", "--exit"], 3, ""),
        (["compare", "a.rec"], 2, "a.rec: give a second recording behind it, which ends in .rec, and nothing else"),
        (["compare", "--with", "a.rec", "b.rec", "c.rec"], 2, "b.rec: give a second recording"),
        (["compare", "a.rec", "b.rec"], 2, "Error: a.rec: No such file or directory"),
        (["compare", "--with", "a.rec", "train.py"], 2, "a.rec: No such file or directory"),
        (["compare", "--module", "h", "a.rec", "b.rec"], 2, "'h' is not OLD=NEW"),
        (["compare", "--rtol", "-1", "a.rec", "b.rec"], 2, "rtol must be a number, 0 or more, not -1.0"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_what_goes_wrong(arguments, code, said, here):
    done = call(*arguments)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert not Path("a.rec").exists()


def test_a_damaged_recording_is_named(here):
    Path("a.rec").write_text("nothing")
    done = call("compare", "a.rec", "a.rec")
    assert done.returncode == 2
    assert done.stderr.startswith("Error: a.rec: not a recording: ")
    assert done.stderr.count("\n") == 1
