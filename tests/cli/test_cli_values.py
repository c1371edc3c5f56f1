"""habana-mp report --values and habana-mp find-nonfinite: what the numbers of a script say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from habana_mp import hmp
from habana_mp.cli import main

TRAIN = """
import sys
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))
scale = 1e30 if "--spoil" in sys.argv else 1.0
loss = (model(torch.ones(4, 8)).float() * scale).square().mean()
loss.backward()
print("trained")
if "--exit" in sys.argv:
    sys.exit(3)
"""


def call(*arguments: str) -> Result:
    Path("train.py").write_text(TRAIN)
    return CliRunner().invoke(main, arguments)


def test_report_values(here):
    done = call("report", "--values", "--json", "out.json", "train.py")
    assert (done.stdout, done.exit_code) == ("trained\n", 0)
    assert ":fp32: " in done.stderr
    assert "of the error of the loss (" in done.stderr
    assert "), in Sequential: " in done.stderr
    report = hmp.CastReport.load("out.json")
    assert float(report.local_error("linear")) > 0
    assert report.edits()


def test_shares_of_an_error_that_is_not_known_are_not_shown(here):
    """A loss that is not finite has no gradients to tell which op makes the error: 0 % for each would be false."""
    assert "of all error" in call("report", "--values", "train.py").stderr
    spoiled = call("report", "--values", "--html", "casts.html", "train.py", "--spoil").stderr
    assert "error" in spoiled
    assert "of all error" not in spoiled


def test_the_command_of_the_advice_runs_the_same_program(here):
    printed = call("report", "--values", "train.py", "--exit").stderr
    assert " --edit +linear:fp32 train.py --exit\n" in printed


def test_without_values_nothing_is_measured(here):
    call("report", "--json", "out.json", "train.py")
    assert not any("values" in row for row in json.loads(Path("out.json").read_text())["rows"])


@pytest.mark.parametrize(
    ("arguments", "code", "printed"),
    [
        ([], 0, "is finite.\nhabana-mp report --values shows the ops that lost numbers on the way"),
        (["--exit"], 3, "The script failed. Until then, all that it trained, returned or printed was finite."),
        (["--spoil"], 1, "pow makes infinities in bfloat16, in the forward pass"),
        (["--spoil", "--exit"], 1, "pow makes infinities"),
    ],
)
def test_find_nonfinite(arguments, code, printed, here):
    done = call("find-nonfinite", "--policy", "hmp", "train.py", *arguments)
    assert (done.stdout, done.exit_code) == ("trained\n", code)
    assert printed in done.stderr


def test_find_nonfinite_of_a_script_that_is_not_there(here):
    assert CliRunner().invoke(main, ["find-nonfinite", "none.py"]).exit_code == 2


def test_edits_are_written_and_taken(here):
    done = call("report", "--values", "--write-edits", "delta.txt", "train.py")
    assert done.exit_code == 0, done.stderr
    head, empty, title, *lines = Path("delta.txt").read_text().splitlines()
    assert (empty, title, bool(lines)) == ("", "# for accuracy", True)
    assert "the error of the loss; " in head
    assert all(line.startswith("+") and ":fp32  # makes " in line for line in lines)
    done = call("run", "--edit", "delta.txt", "train.py")
    assert (done.stdout, done.exit_code) == ("trained\n", 0)
    op = lines[0][1:].partition(":")[0]
    explained = call("explain", op, "--edit", "delta.txt")
    assert "fp32" in explained.stdout


def test_a_file_without_edits_has_the_reason(here):
    """It was empty, and the exit code is that of the script."""
    Path("infer.py").write_text("import torch\nwith torch.no_grad():\n    torch.nn.Linear(8, 8)(torch.randn(4, 8))\n")
    done = call("report", "--values", "--write-edits", "delta.txt", "infer.py")
    assert done.exit_code == 0, done.stderr
    assert done.stderr.splitlines()[-1].startswith("--write-edits: no edits. The reason is in ")
    assert (
        Path("delta.txt")
        .read_text()
        .startswith("# no backward pass was seen, so it is not known which op makes the error; call")
    )
    assert call("run", "--edit", "delta.txt", "infer.py").exit_code == 0


def test_the_reason_where_no_op_ran(here):
    Path("none.py").write_text("")
    assert call("report", "--policy", "hmp", "--values", "--write-edits", "delta.txt", "none.py").exit_code == 0
    assert Path("delta.txt").read_text().startswith("# no op was seen; ")


def test_edits_of_modules_are_written_and_taken(here):
    done = call("report", "--values", "--write-edits", "delta.txt", "--per", "module", "train.py")
    assert done.exit_code == 0, done.stderr
    head, _, text = Path("delta.txt").read_text().partition("\n\n")
    assert text.startswith("# for accuracy\n+linear in ")
    assert head.startswith("# +linear in ")
    before = json.loads(call("report", "--json", "-", "train.py").stdout.splitlines()[-1])["casts"]
    after = call("report", "--json", "-", "--edit", "delta.txt", "train.py")
    assert json.loads(after.stdout.splitlines()[-1])["casts"] < before


@pytest.mark.parametrize(
    ("arguments", "code", "printed"),
    [
        (["--max-casts", "100"], 0, ""),
        (["--max-casts", "2"], 1, "--max-casts 2: there are 5"),
        (["--values", "--max-error", "0.1"], 0, ""),
        (["--values", "--max-error", "1e-6"], 1, "--max-error 1e-06: linear has 0.00"),
        (["--max-error", "1"], 2, "--max-error needs --values"),
        (["--write-edits", "d.txt"], 2, "--write-edits needs --values"),
        (["--values", "--per", "module"], 2, "--per needs --write-edits FILE"),
        (["--baseline", "none.json"], 2, "File 'none.json' does not exist"),
        (["--baseline", "train.py"], 2, "train.py: not a report"),
        (["--baseline", "before.json"], 0, ""),
        (["--baseline", "before.json", "--edit", "-linear"], 1, "--baseline: the casts differ"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_limits_for_ci(arguments, code, printed, here):
    call("report", "--json", "before.json", "train.py")
    done = call("report", *arguments, "train.py")
    assert done.exit_code == code, done.stderr
    assert printed in done.stderr


def test_a_script_that_fails_ends_as_it_does(here):
    assert call("report", "--max-casts", "0", "train.py", "--exit").exit_code == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("linear", "--edit edits.txt, line 1: 'linear' is not an edit of a policy: it begins with neither + nor -"),
        ("# why\n+linear", "linear"),
        (
            "+mm:int8\n+softmax:int8",
            "--edit edits.txt, line 2: 'softmax' cannot be in the int8 list. Accepted are linear, ",
        ),
        (b"+mm:fp32  # caf\xe9", "--edit edits.txt: 'utf-8' codec can't decode"),
        (
            None,
            "--edit edits.txt: No such file or directory. Accepted are '+op:list', '-op', and a file of them",
        ),
    ],
    ids=["no edit", "no list", "refused by the list", "no UTF-8", "no file"],
)
def test_files_of_edits_that_are_wrong(text, said, here):
    if text is not None:
        Path("edits.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
    done = call("run", "--edit", "edits.txt", "train.py")
    assert done.exit_code == 2
    assert said in done.stderr


def test_the_difference_of_two_reports(here):
    call("report", "--values", "--json", "a.json", "train.py")
    call("report", "--values", "--json", "b.json", "--edit", "-linear", "train.py")
    done = call("diff", "a.json", "b.json", "--html", "d.html")
    assert done.exit_code == 1
    assert "linear  float32 -> bfloat16" in done.stdout
    assert "error before" in done.stdout
    assert "linear" in Path("d.html").read_text()
    same = call("diff", "a.json", "a.json")
    assert (same.stdout, same.exit_code) == ("no difference: the same casts\n", 0)
    Path("a.rec").write_bytes(b"\xc8")
    done = call("diff", "a.rec", "a.json")
    said = "Error: a.rec is a recording, not a report: habana-mp compare compares two recordings\n"
    assert (done.stderr, done.exit_code) == (said, 2)


def test_formats(here):
    done = call(
        "report", "--values", "--formats", "int8", "--json", "out.json", "--write-edits", "edits.txt", "train.py"
    )
    assert done.exit_code == 0
    assert float(hmp.CastReport.load("out.json").local_error("linear", what_if="int8")) > 0
    assert "8 bits" in Path("edits.txt").read_text() or "no edit" in Path("edits.txt").read_text()
    for arguments, text in {
        ("report", "--values", "--formats", "int4"): "formats has 'int4'; accepted are 'weight_int8', 'int8'",
        ("report", "--formats", "int8"): "--formats needs --values",
        ("tune", "--budget", "0.1", "--formats", "float32,lower,int_8"): "formats has 'int_8'",
    }.items():
        done = call(*arguments, "train.py")
        assert (done.exit_code, text in done.stderr) == (2, True), done.stderr
