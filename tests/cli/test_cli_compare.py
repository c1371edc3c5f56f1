"""habana-mp compare: a script under two policies, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = """
import sys
import torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))
loss = model(torch.randn(4, 8)).float().square().mean()
loss.backward()
print("trained")
if "--exit" in sys.argv:
    sys.exit(3)
if "--say" in sys.argv:
    sys.exit("said")
if "--close" in sys.argv:
    sys.stdout.flush()
    sys.stdout.close()
if "--raise" in sys.argv:
    raise ValueError("no")
"""


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    Path("train.py").write_text(TRAIN)
    return subprocess.run(
        [sys.executable, "-m", "habana_mp", "compare", *arguments], capture_output=True, text=True, check=False
    )


def test_hmp_beside_no_casts(here):
    done = call("--policy", "hmp", "--html", "c.html", "--json", "c.json", "train.py", "--steps", "1")
    assert (done.stdout, done.returncode) == ("trained\ntrained\n", 1), done.stderr
    assert "a: none\nb: hmp\n\nfirst difference\n  linear in Sequential: 0, in the forward pass" in done.stderr
    assert "gradients differ by 0.0" in done.stderr
    found = json.loads(Path("c.json").read_text())
    assert (found["first"]["op"], found["names"]) == ("linear", ["none", "hmp"])
    assert "Sequential: 0" in Path("c.html").read_text()


# the script begins with -> the name of run b
CHOSEN = {
    "nobody": ("", "balanced"),
    "convert()": ("from habana_mp import hmp\nhmp.convert()", "hmp"),
    "a region": ("from habana_mp import hmp\nwith hmp.autocast('cpu'):\n    pass", "the script's"),
    "Gaudi": ("from habana_frameworks.torch.hpex import hmp\nhmp.convert()", "hmp"),
}


@pytest.mark.parametrize("case", CHOSEN)
def test_run_b_without_a_policy_is_what_the_script_chooses(here, case):
    script, name = CHOSEN[case]
    Path("own.py").write_text(script + TRAIN)
    done = call("--json", "c.json", "own.py")
    assert done.stdout == "trained\ntrained\n", done.stderr
    assert json.loads(Path("c.json").read_text())["names"] == ["none", name]


def test_none_casts_nothing_in_regions_of_the_script(here):
    Path("region.py").write_text(
        "import torch\nfrom habana_mp import hmp\n"
        "with hmp.autocast('cpu'):\n    print(torch.nn.Linear(8, 8)(torch.randn(4, 8)).dtype)\n"
    )
    done = call("--policy", "balanced", "region.py")
    assert (done.stdout, done.returncode) == ("torch.float32\ntorch.bfloat16\n", 1), done.stderr


def test_no_rule_is_named_where_nothing_is_cast(here):
    assert (
        "first difference\n  linear in Sequential: 0, in the forward pass: a float32, b bfloat16 ("
        in call("train.py").stderr
    )


def test_one_policy_beside_itself_is_the_same(here):
    done = call("--policy", "hmp", "--with", "hmp", "train.py")
    assert (done.stdout, done.returncode) == ("trained\ntrained\n", 0), done.stderr
    assert "The same numbers in " in done.stderr


def test_both_runs_draw_the_same_random_numbers(here):
    Path("draw.py").write_text(
        "import random, numpy, torch\nx = torch.rand(2) * random.random() * numpy.random.rand()\nprint(x.exp().sum().item())\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "habana_mp", "compare", "--policy", "hmp", "--with", "hmp", "draw.py"],
        capture_output=True,
        text=True,
        check=False,
    )
    first, second = done.stdout.split()
    assert (first, done.returncode) == (second, 0), done.stderr


def test_an_edit_is_named(here):
    done = call("--policy", "hmp", "--edit", "+gelu:fp32", "--with", "hmp", "train.py")
    assert (
        "first difference\n  gelu in Sequential: 1, in the forward pass: a bfloat16, b float32 (fp32: gelu"
        in done.stderr
    )


def test_the_policies_may_stand_behind_the_script(here):
    done = call("train.py", "--steps", "1", "--policy", "torch-cpu", "--with", "hmp")
    assert "a: hmp\nb: torch-cpu\n" in done.stderr
    assert (done.stdout, done.returncode) == ("trained\ntrained\n", 0), done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["train.py", "--exit"], 3, "Run a, under none, ended with 3: nothing is compared."),
        (["train.py", "--raise"], 1, "ValueError: no"),
        (["train.py", "--say"], 1, "said\nRun a, under none, ended with 1"),
        (["train.py", "--close"], 1, "first difference"),
        (["--with", "nosuch", "train.py"], 2, "Unknown policy 'nosuch'"),
        (["--html", "no/such/c.html", "train.py"], 2, "--html no/such/c.html: No such file or directory"),
        (["train.py", "--with"], 2, "--with takes a policy"),
        (["none.py"], 2, "none.py: No such file or directory"),
    ],
    ids=["exits", "raises", "says", "closes stdout", "no policy", "no folder", "nothing behind", "no script"],
)
def test_what_goes_wrong(arguments, code, said, here):
    done = call(*arguments)
    assert done.returncode == code
    assert said in done.stderr


@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        (["--edit", "+linear in 0:lower", "train.py"], "a float32, b bfloat16"),
        (
            ["train.py", "--with", "hmp", "--policy", "own"],
            "a bfloat16 (lower: linear, lists/hmp/lower.txt:22), b float32",
        ),
    ],
)
def test_names_for_modules_hold_in_their_run_alone(arguments, first, here):
    Path("own").mkdir()
    Path("own/policy.toml").write_text('low_dtype = "bfloat16"\nrest = "inputs"\n')
    Path("own/lower.txt").write_text("linear\n")
    Path("own/fp32.txt").write_text("linear in 0\n")
    Path("own/promote.txt").touch()
    done = call(*arguments)
    assert f"first difference\n  linear in Sequential: 0, in the forward pass: {first}" in done.stderr
    assert "none of the called models has" not in done.stderr
