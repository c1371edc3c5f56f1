"""habana-mp tune: a step of a script, in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from habana_mp import hmp
from habana_mp.cli import main

PRESETS = Path(__file__).parents[2] / "lists"
TRAIN = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(16, 16)
x, angles = torch.randn(64, 16), 500 * torch.rand(64, 16)

def step():
    return torch.tanh(model(x)) + torch.cos(angles)

def others():
    return torch.tanh(model(x + 1)) + torch.cos(angles / 2)

def bad():
    return model(x + 1000) - model(x + 1001)

def fails():
    with open("calls", "a") as file:
        file.write("call ")
    raise ValueError("of the script")

def misses():
    open("missing.csv")

def nothing():
    return None

def leaves():
    raise SystemExit(7)

def takes(batch):
    return model(batch)

VALUE = 3

if __name__ == "__main__":
    raise SystemExit("it was run")
"""
SPOILT = {
    "broken.py": "def step(:",
    "raising.py": "raise ValueError('when imported')",
    "leaving.py": "raise SystemExit(5)",
}
ENV = {key: value for key, value in os.environ.items() if key != "COLUMNS"} | {"OMP_NUM_THREADS": "1"}


@pytest.fixture
def scripts(here, monkeypatch) -> Path:
    for name in ("train", "pack"):  # what a command in this process imports is forgotten
        monkeypatch.setitem(sys.modules, name, sys)
        monkeypatch.delitem(sys.modules, name)
    for name, text in {"train.py": TRAIN, **SPOILT}.items():
        (here / name).write_text(text)
    (here / "pack").mkdir()
    (here / "pack" / "__init__.py").touch()
    (here / "pack" / "train.py").write_text(TRAIN)
    return here


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "habana_mp", "tune", *arguments], capture_output=True, text=True, check=False, env=ENV
    )


def call_here(*arguments: str) -> Result:
    """In this process, which is quicker."""
    return CliRunner().invoke(main, ["tune", *arguments])


def tune(target: str, *options: str, budget: str = "1e-2") -> subprocess.CompletedProcess[str]:
    return call(target, "--budget", budget, "--cost", "numbers", *options)


def test_all_that_it_writes(scripts):
    start = ("--policy", "hmp", "--others", "lower")
    done = tune(
        *("train.py:step", "--output", "my/policy", "--html", "t.html", "--json", "t.json", "--resume", "s.json"),
        *start,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "4 ops: at most 22 runs\n"
    lines = done.stdout.splitlines()
    assert lines[0].startswith("4 parts, 1 in float32; error 0.00")
    assert ["policy", "error", "(predicted)", "time", "(predicted)"] in [line.split() for line in lines]
    assert any(line.startswith("cos: rest -> fp32; ") for line in lines)
    policy = hmp.Policy.load("my/policy")
    assert policy.rule("cos").action == "fp32"
    assert policy.rule("tanh").action == "lower"
    found = json.loads(Path("t.json").read_text())
    assert hmp.Policy.load(found["policy"]) == policy
    assert (found["budget"], found["cost"], found["check_error"]) == (0.01, "numbers", None)
    assert "Tuned policy" in Path("t.html").read_text()
    assert json.loads(Path("s.json").read_text())["format"] == "habana_mp.tune"
    again = tune(
        "train.py:step", "--resume", "s.json", "--output", "my/policy", "--json", "-", *start
    )  # over the one before
    assert again.returncode == 0, again.stderr
    assert {**found, "points": 0} == {**json.loads(again.stdout.splitlines()[-1]), "points": 0}


@pytest.mark.parametrize("target", ["train:step", "pack.train:step"])
def test_a_module(target, scripts):
    done = tune(target)
    assert done.returncode == 0, done.stderr
    assert "\nbalanced " in done.stdout  # which a search starts from


def test_edits_alone_are_of_balanced(scripts):
    done = tune("train.py:step", "--edit", "+cos:lower")
    assert done.returncode == 0, done.stderr
    assert "\nbalanced+edits " in done.stdout


def test_the_script_may_change_the_folder(scripts):
    Path("moves.py").write_text("import os\nfrom train import step\nos.chdir('pack')\n")
    files = ("--output", "policy", "--resume", "s.json", "--html", "t.html", "--json", "t.json")
    done = tune("moves.py:step", *files)
    assert done.returncode == 0, done.stderr
    assert {*files[1::2]} <= {each.name for each in scripts.iterdir()}


@pytest.mark.parametrize(
    ("check", "code", "said"), [("others", 0, "within the budget"), ("bad", 1, "above the budget")], ids=["0", "1"]
)
def test_the_exit_code_is_that_of_the_check(check, code, said, scripts):
    done = tune("train.py:step", "--check", check, "--output", "policy")
    assert done.returncode == code, done.stderr
    assert done.stdout.splitlines()[1].startswith("error on the data of check: ")
    assert done.stdout.splitlines()[1].endswith(said)
    assert hmp.Policy.load("policy").rule("cos").action == "fp32"  # written in any case


def test_a_policy_to_start_from(scripts):
    done = tune(
        *("train.py:step", "--policy", "torch-cpu", "--edit", "+cos:lower", "--low-dtype", "fp16", "--json", "-"),
        *("--others", "start", "--per", "module", "--seed", "3"),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    policy = hmp.Policy.load(found["policy"])
    assert (policy.rest, str(policy.low_dtype)) == (hmp.Policy.load("torch-cpu").rest, "torch.float16")
    assert policy.rule("cos").action == "fp32"


@pytest.mark.parametrize(
    ("top", "start"),
    [("", "balanced"), ("from habana_mp import hmp\nhmp.convert()", "hmp")],
    ids=["nobody chooses", "convert()"],
)
def test_the_search_starts_from_the_default_or_what_the_script_converts_with(top, start, scripts):
    Path("train.py").write_text(top + TRAIN)
    done = tune("train.py:step")
    assert f"\n{start} " in done.stdout, done.stderr


FUNCTIONS = "it has step, others, bad, fails, misses, nothing, leaves, takes"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train.py"], "train.py: name the function, such as train.py:step"),
        (["train"], "train: is SCRIPT.py:STEP, a script and a function in it, such as train.py:step"),
        (["train.py:takes"], "train.py:takes: a step takes no arguments, but takes takes batch"),
        (["train.py:"], "train.py:: is SCRIPT.py:STEP"),
        ([":step"], ":step: is SCRIPT.py:STEP"),
        (["none.py:step"], "none.py: no such file"),
        (["none:step"], "no file and no module 'none'"),
        (["no.such:step"], "no file and no module 'no.such'"),
        (["train.py:stop"], f"train.py has no function 'stop'; {FUNCTIONS}"),
        (["train.py:VALUE"], f"'VALUE' in train.py is an int and no function. Functions in train.py: {FUNCTIONS[7:]}"),
        (["train.py:step", "--check", "stop"], f"train.py has no function 'stop'; {FUNCTIONS}"),
        (["train.py:nothing"], "the step returns no numbers: return its outputs or its loss"),
        (["train.py:step", "--metric", "gradients"], "the step leaves no gradients"),
        (["train.py:step", "--policy", "nowhere"], "Unknown policy 'nowhere'"),
        (["train.py:step", "--policy", "none"], "no op of the step computes in bfloat16 under none"),
        (
            ["train.py:step", "--output", "."],
            "--output .: has files that do not belong to a policy of hmp.tune (",
        ),
        (
            ["train.py:step", "--output", "by_hand"],
            "--output by_hand: has a policy that hmp.tune did not make. Use a new folder",
        ),
        (["train.py:step", "--output", "train.py/policy"], "--output train.py/policy: Not a directory"),
        (["train.py:step", "--output", "/proc/mine/policy"], "--output /proc/mine/policy: No such file or directory"),
        (["train.py:step", "--output", "new/" + "x" * 300], "xxx: File name too long"),
        (["train.py:nothing", "--output", "new/policy"], "the step returns no numbers"),
        (["train.py:step", "--resume", "/proc/s.json"], "/proc/s.json: No such file or directory"),
        (["train.py:step", "--html", "no/t.html"], "--html no/t.html: No such file or directory"),
        (["train.py:step", "--json", "no/t.json"], "--json no/t.json: No such file or directory"),
        (["train.py:step", "--resume", "train.py"], "/train.py: not a file of a search: "),
        (["train.py:step", "--resume", "no/s.json"], "/no/s.json: No such file or directory"),
        (
            ["train.py:step", "--budget", "0"],
            "budget must be the largest accepted error, a number above 0 and below 1, not 0.0",
        ),
        (["train.py:step", "--budget", "inf"], "a number above 0 and below 1, not inf"),
        (["train.py:step", "--budget", "nan"], "budget must be the largest"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_wrong_is_one_line(arguments, said, scripts):
    shutil.copytree(PRESETS / "hmp", "by_hand")
    done = call_here("--budget", "1e-2", "--cost", "numbers", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: ")
    assert said in line
    assert not Path("new").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train.py:step"], "Missing option '--budget'."),
        (["train.py:step", "--budget", "small"], "'small' is not a valid float"),
        (["train.py:step", "--budget", "1", "--cost", "bytes"], "'bytes' is not one of"),
        (["train.py:step", "--budget", "1", "--output", "train.py"], "Directory 'train.py' is a file."),
        (["--budget", "1"], "Missing argument 'SCRIPT.py:STEP'."),
    ],
    ids=["no budget", "no number", "cost", "output", "no step"],
)
def test_what_click_refuses(arguments, said, scripts):
    done = call_here(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("target", "options", "last", "code"),
    [
        ("train.py:fails", [], "ValueError: of the script", 1),
        ("train.py:misses", [], "FileNotFoundError: [Errno 2] No such file or directory: 'missing.csv'", 1),
        ("train.py:step", ["--check", "fails"], "ValueError: of the script", 1),
        ("raising.py:step", [], "ValueError: when imported", 1),
        ("raising:step", [], "ValueError: when imported", 1),
        ("broken.py:step", [], "SyntaxError: invalid syntax", 1),
        ("train.py:leaves", [], "", 7),
        ("leaving.py:step", [], "", 5),
    ],
    ids=["step", "file", "check", "import", "module", "syntax", "leaves", "import leaves"],
)
def test_a_script_that_fails_ends_as_python_does(target, options, last, code, scripts):
    done = tune(target, *options)
    assert (done.returncode, done.stdout) == (code, "")
    lines = [line for line in done.stderr.splitlines() if "ops: at most" not in line]
    assert "".join(lines[-1:]) == last
    assert not [line for line in lines if "habana_mp" in line and "line " in line]
    assert not last or any(f'{target.partition(":")[0].removesuffix(".py")}.py", line' in line for line in lines)


def test_a_script_that_fails_leaves_nothing(scripts):
    before = {each.name for each in scripts.iterdir()}
    tune("train.py:fails", "--output", "policy", "--html", "t.html", "--json", "t.json")
    assert {each.name for each in scripts.iterdir()} - before <= {"calls", "__pycache__"}
    assert Path("calls").read_text() == "call "
