"""habana-mp report: a script as run runs it, and what its report says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from habana_mp import hmp
from habana_mp.cli import main

TRAIN = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Softmax(-1))
model(torch.ones(2, 8)).sum().backward()
print("trained")
"""


def report(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["report", *arguments])


def seen(*arguments: str) -> tuple[dict, Result]:
    """The JSON of a report on script.py, and what the command did beside."""
    done = report("--json", "out.json", *arguments, "script.py")
    return json.loads(Path("out.json").read_text()), done


def test_the_report_is_on_stderr(here):
    Path("script.py").write_text(TRAIN)
    done = report("script.py")
    assert (done.stdout, done.exit_code) == ("trained\n", 0)
    assert "script.py" in done.stderr
    assert "linear" in done.stderr


def test_it_says_what_happened(here):
    Path("script.py").write_text(TRAIN)
    printed, done = seen()
    assert (done.stdout, done.exit_code, printed["title"]) == ("trained\n", 0, "script.py")
    assert [(each["name"], each["front_end"]) for each in printed["policies"]] == [("balanced", "convert")]
    rows = {row["op"]: row for row in printed["rows"]}
    assert rows["linear"]["runs_in"] == ["bfloat16"]
    assert rows["linear"]["source"] == f"{here}/script.py:4"
    assert rows["linear"]["module"] == "Sequential: 0"
    assert sum(cast["count"] for cast in rows["linear"]["casts"]) == 3
    assert hmp.CastReport.load("out.json").casts("linear", to="bfloat16") == 3


def test_json_as_the_last_line(here):
    Path("script.py").write_text(TRAIN)
    *before, last = report("--json", "-", "script.py").stdout.splitlines()
    assert before == ["trained"]
    assert json.loads(last)["title"] == "script.py"


def test_a_page(here):
    Path("script.py").write_text("import os\nos.mkdir('elsewhere')\nos.chdir('elsewhere')\n" + TRAIN)
    done = report("--html", "page.html", "script.py")
    assert (done.stdout, done.exit_code) == ("trained\n", 0)
    assert "script.py" in Path(here, "page.html").read_text()


@pytest.mark.parametrize(
    ("ending", "code", "printed"),
    [("raise SystemExit(3)", 3, ""), ("1 / 0", 1, "ZeroDivisionError"), ("raise KeyboardInterrupt", 130, "KeyboardInterrupt")],
    ids=["exit", "error", "ctrl-c"],
)  # fmt: skip
def test_a_script_that_fails_is_reported(here, ending, code, printed):
    Path("script.py").write_text(TRAIN + ending)
    found, done = seen()
    assert done.exit_code == code
    assert printed in done.stderr
    assert "linear" in {row["op"] for row in found["rows"]}


OWN = "from habana_mp import hmp\nhmp.convert(policy='hmp-o2')\n" + TRAIN
REGION = (
    "from habana_mp import hmp\nimport torch\nwith hmp.autocast('cpu'):\n    torch.nn.Linear(8, 8)(torch.ones(2, 8))\n"
)


@pytest.mark.parametrize(
    ("script", "options", "policies"),
    [
        (TRAIN, ["--policy", "torch-cuda"], [("torch-cuda", "convert")]),
        (OWN, [], [("hmp-o2", "convert")]),
        (OWN, ["--policy", "hmp"], [("hmp", "convert")]),
        (REGION, [], [("torch-cpu", "autocast")]),
    ],
    ids=["asked for", "own", "asked for over own", "region"],
)
def test_policies(here, script, options, policies):
    Path("script.py").write_text(script)
    printed, done = seen(*options)
    assert done.exit_code == 0
    assert [(each["name"], each["front_end"]) for each in printed["policies"]] == policies


@pytest.mark.parametrize("option", ["--html", "--json"])
@pytest.mark.parametrize("path", ["none/page", "folder", "/proc/page"])
def test_a_file_that_cannot_be_written_is_reported_before_the_script_runs(here, option, path):
    Path("folder").mkdir()
    Path("script.py").write_text(TRAIN)
    done = report(option, path, "script.py")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"Error: {option} {path}: ")
    assert done.stderr.count("\n") == 1


def test_a_page_has_no_place_on_stdout(here):
    Path("script.py").write_text(TRAIN)
    done = report("--html", "-", "script.py")
    assert (done.exit_code, done.stderr) == (2, "Error: --html -: a page is not written to stdout; give a file\n")


def test_a_file_of_before_stays_if_the_command_line_is_wrong(here):
    Path("out.json").write_text("before")
    assert report("--json", "out.json", "none.py").exit_code == 2
    assert report("--json", "new.json", "none.py").exit_code == 2
    assert [path.read_text() for path in here.iterdir()] == ["before"]


def test_children_that_the_script_forks_tell_nothing(here):
    Path("script.py").write_text(
        "import os, sys\nchild = os.fork()\nprint('parent\\n' if child else 'child\\n', end='', flush=True)\n"
        "if child:\n    os.waitpid(child, 0)\n" + TRAIN
    )
    done = subprocess.run(
        [sys.executable, "-m", "habana_mp", "report", "--policy", "hmp", "script.py"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert sorted(done.stdout.split()) == ["child", "parent", "trained", "trained"]
    assert done.stderr.count("script.py") == 1
    assert done.returncode == 0
