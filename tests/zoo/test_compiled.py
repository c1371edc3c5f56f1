"""What the zoo reads out of the results of compiled code."""

from __future__ import annotations

import pytest

from zoo import compiled, results
from zoo.cases import Case, Difference, Outcome, Run
from zoo.cases.compiles import EXACT, FUSED, YARDSTICK

PLAIN = Run("none", "", "float32", [Outcome("ran", "")])


def under(front, policy, *differences, outcome=("ran", "1 graphs")):
    return Run(front, policy, "float32", [Outcome(*outcome)], differences=[Difference(*each) for each in differences])


LOW, LOW_OFF = ("outputs in bfloat16", 0.0, 0.0), ("outputs in bfloat16", 1e-4, 0.01)
WIDE, WIDE_OFF = ("outputs in float32", 1e-6, 0.5), ("outputs in float32", 3e-5, 1.0)
SAME = ("outputs in float32", 0.0, 0.0)


@pytest.mark.parametrize(
    ("differences", "yardstick", "verdict"),
    [
        pytest.param([LOW, SAME], None, "same bits", id="the same bits"),
        pytest.param([LOW, WIDE], None, "close", id="float32 within the bound"),
        pytest.param([LOW_OFF, WIDE], None, "off", id="other bits in bfloat16"),
        pytest.param([WIDE_OFF], 1e-6, "off", id="float32 beyond the bound"),
        pytest.param([WIDE_OFF], 1e-5, "as torch", id="as far off without a policy"),
        pytest.param([WIDE_OFF], None, "off", id="the yardstick did not run"),
        pytest.param([("outputs in float32", None, 1.0)], 1e-5, "off", id="other sizes"),
        pytest.param([], None, "off", id="nothing ran"),
    ],
)
def test_verdicts(differences, yardstick, verdict) -> None:
    runs = [PLAIN, under(EXACT, "balanced", *differences)]
    if yardstick is not None:
        runs.append(under(*YARDSTICK, ("outputs in float32", yardstick, 1.0)))
    (row,) = compiled.rows({"inference/bert": runs})
    assert dict(row.verdicts) == {verdict: 1}
    assert bool(compiled.off({"inference/bert": runs})) == (verdict == "off")


def test_the_page_has_every_finding() -> None:
    found = {
        "training/bert": [
            PLAIN,
            under(EXACT, "hmp", LOW, ("gradients in float32", 1e-3, 0.5), ("gradients of norms in float32", 7e-3, 1.0)),
        ],
        "training/gpt2": [
            PLAIN,
            under(EXACT, "hmp", LOW, ("gradients in float32", 0.25, 0.5), ("gradients of norms in float32", 7e-3, 1.0)),
        ],
        "training/vit": [PLAIN, under(EXACT, "hmp", outcome=("forward", "RuntimeError: no kernel"))],
        "training/timm": [Run("none", "", "float32", [Outcome("forward", "ImportError: timm")])],
        "inference/bert": [
            PLAIN,
            under(EXACT, "balanced", WIDE_OFF),
            under(FUSED, "hmp", ("outputs in bfloat16", 0.125, 0.5)),
            under(*YARDSTICK, ("outputs in float32", 2e-6, 1.0)),
        ],
    }
    shown = compiled.page(found, "abcdef012")
    for line in (
        " on the CPU, at commit abcdef012. ",
        "Of 2 architectures that `torch.compile` compiles, 1 (50.0 %) give",
        "| training | `hmp` | 3 | 2 | 0 | 0 | 1 | 0 | 1 | 1 | 7.0e-03 | 7.0e-03 |",
        "| inference | `balanced` | 1 | 0 | 0 | 0 | 1 | - | - | - | - | - |",
        "outputs of 1 of 1 architectures",
        "| `training/gpt2` | `hmp` | gradients in float32 | 0.25 | 50 |  |  |",
        "| `training/vit` | `hmp` | RuntimeError: no kernel |  |  |  |  |",
        "| `inference/bert` | `balanced` | outputs in float32 | 3.0e-05 | 100 | 2.0e-06 |  |",
    ):
        assert line in shown
    assert "timm" not in shown


def test_results_are_read_as_they_were_written(tmp_path) -> None:
    runs = [PLAIN, under(EXACT, "hmp", LOW, ("outputs in float32", None, 1.0))]
    file = tmp_path / "results.jsonl"
    file.write_text(results.line(Case("training", "bert", lambda skip: iter(())), runs))
    assert results.read(file) == {"training/bert": runs}
