"""habana-mp report --values and habana-mp find-nan: what the numbers of a script say."""

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
    assert "of the error of the loss: +" in done.stderr
    report = hmp.CastReport.load("out.json")
    assert float(report.local_error("linear")) > 0
    assert report.edits()


def test_without_values_nothing_is_measured(here):
    call("report", "--json", "out.json", "train.py")
    assert not any("values" in row for row in json.loads(Path("out.json").read_text())["rows"])


@pytest.mark.parametrize(
    ("arguments", "code", "printed"),
    [
        ([], 0, "is finite"),
        (["--exit"], 3, "is finite"),
        (["--spoil"], 1, "pow makes infinities in bfloat16, in the forward pass"),
        (["--spoil", "--exit"], 1, "pow makes infinities"),
    ],
)
def test_find_nan(arguments, code, printed, here):
    done = call("find-nan", "train.py", *arguments)
    assert (done.stdout, done.exit_code) == ("trained\n", code)
    assert printed in done.stderr


def test_find_nan_of_a_script_that_is_not_there(here):
    assert CliRunner().invoke(main, ["find-nan", "none.py"]).exit_code == 2
