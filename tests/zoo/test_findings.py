"""What the zoo reads out of its results."""

from __future__ import annotations

import json

import pytest

from zoo import findings, reasons, results
from zoo.cases import Case, Outcome, Run
from zoo.page import page, text

RAN, LOW = Outcome("ran", "float32"), Outcome("ran", "bfloat16")
RAISED = Outcome("forward", "RuntimeError: no kernel")
BACKWARD = Outcome("backward", "RuntimeError: no kernel")


def case_of(torch_autocast, convert, autocast):
    """The runs of one call: plainly, under torch.autocast, and under a policy by each front end."""
    return [
        Run("none", "", "float32", [RAN]),
        Run("torch.autocast", "", "float32", [torch_autocast], 0.25, 0.5),
        Run("convert", "hmp", "float32", [convert], 0.5, 0.75, "scale is bfloat16"),
        Run("autocast", "hmp", "float32", [autocast], 1.0, 1.5),
    ]


@pytest.mark.parametrize(
    ("torch_autocast", "convert", "autocast", "raised", "differ", "alone"),
    [
        pytest.param(LOW, LOW, LOW, [], [], {}, id="all run and agree"),
        pytest.param(LOW, RAISED, LOW, [("convert", "hmp")], [], {"convert": 1}, id="convert raises alone"),
        pytest.param(
            LOW, BACKWARD, BACKWARD, [("autocast", "hmp"), ("convert", "hmp")], [], {}, id="both raise in the backward"
        ),
        pytest.param(RAISED, RAISED, RAISED, [], [], {}, id="torch.autocast raises too"),
        pytest.param(RAISED, RAISED, LOW, [], [], {"convert": 1}, id="torch.autocast and convert raise"),
        pytest.param(LOW, LOW, RAN, [], ["bfloat16 / float32"], {}, id="other dtypes"),
    ],
)
def test_what_is_found(torch_autocast, convert, autocast, raised, differ, alone):
    found = {"op/mm": case_of(torch_autocast, convert, autocast)}
    assert [where for row in findings.raises(found) for where in row.where] == raised
    assert [dtypes for row in findings.disagreements(found) for dtypes in row.dtypes] == differ
    assert findings.one_alone(found) == alone
    assert ("no kernel" in text(found)) == bool(raised)


def test_a_process_that_ended_raised_where_torch_autocast_ran():
    runs = case_of(LOW, Outcome("process", "Aborted"), LOW)
    assert [row.message for row in findings.raises({"op/mm": runs})] == ["Aborted"]


@pytest.mark.parametrize("inputs", ["float32", "mixed"])
def test_a_call_is_compared_with_the_same_call_under_torch_autocast(inputs):
    """The mixed inputs of torch.autocast raise here, so that nothing raises alone under them."""
    runs = [
        Run("torch.autocast", "", "float32", [LOW]),
        Run("torch.autocast", "", "mixed", [RAISED]),
        Run("convert", "hmp", inputs, [RAISED]),
    ]
    assert len(findings.raises({"op/mm": runs})) == (inputs == "float32")


def test_the_errors_of_an_architecture_stand_beside_those_of_torch_autocast():
    (row,) = findings.errors({"architecture/bert": case_of(LOW, LOW, LOW)}, "output_error")
    assert (row.torch, row.ours, row.worst) == (0.25, {("convert", "hmp"): 0.5, ("autocast", "hmp"): 1.0}, 1.0)


def test_the_page_has_every_finding():
    shown = page({"op/mm": case_of(LOW, RAISED, LOW), "architecture/bert": case_of(LOW, LOW, RAN)}, "abcdef012")
    for line in (
        "| op | `hmp` | convert | 1 | 1 | 1 | 1 |",
        "| op | `hmp` | autocast | 1 | 0 | 0 | 0 |",
        "| RuntimeError: no kernel | convert: hmp | `op/mm` |",
        "| `architecture/bert` | bfloat16 / float32 | hmp |",
        "| `architecture/bert` | hmp | scale is bfloat16 |",
        "| `architecture/bert` | 0.25 | 1 | ",
    ):
        assert line in shown


def test_the_page_says_that_nothing_was_found():
    runs = case_of(LOW, LOW, LOW)
    runs[2] = Run("convert", "hmp", "float32", [LOW], 0.5, 0.75)
    shown = page({"architecture/bert": runs}, "abcdef012")
    assert "\nNothing.\n" in shown
    assert "\nNone.\n" in shown
    assert "has the same parameters and buffers" in shown


def test_an_architecture_that_does_not_run_in_float32_is_left_out():
    shown = page(
        {"architecture/timm": [Run("none", "", "float32", [Outcome("forward", "ImportError: timm")])]}, "abcdef012"
    )
    assert "and 1 architectures, of which 1 need a\nlibrary that is not installed" in shown


def test_each_reason_matches_something_or_is_no_pattern():
    """An error that the preset means has its reason; another error of the same op has none."""
    error = "op/nn_functional_binary_cross_entropy convert torch-cuda: RuntimeError: binary_cross_entropy is refused"
    assert "D31" in reasons.find(reasons.RAISES, error)
    assert reasons.find(reasons.RAISES, error.replace("torch-cuda", "hmp")) == ""


def test_results_are_read_as_they_were_written(tmp_path):
    """A line that was cut when the run was stopped is as if the case had not run."""
    runs = case_of(LOW, RAISED, LOW)
    line = results.line(Case("op", "mm", lambda skip: iter(())), runs)
    file = tmp_path / "results.jsonl"
    file.write_text(line + line.replace("op/mm", "op/mv")[:-20])
    assert results.read(file) == {"op/mm": runs}
    assert json.loads(line)["case"] == "op/mm"


def test_nothing_has_run_where_there_is_no_file(tmp_path):
    assert results.read(tmp_path / "none.jsonl") == {}


def test_cases_that_run_again_forget_their_own_results_alone(tmp_path):
    """`--fresh --only op/mm` once forgot the hours of all others."""
    file = tmp_path / "results.jsonl"
    lines = {name: results.line(Case("op", name, lambda skip: iter(())), []) for name in ("mm", "bmm", "addmm")}
    file.write_text("".join(lines.values()) + '{"case": "op/cut')
    results.forget(file, {"op/mm"})
    assert file.read_text() == lines["bmm"] + lines["addmm"]
