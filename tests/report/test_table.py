"""The report in the terminal: the whole text at 80 and 120 columns, and what no name may do to it."""

from __future__ import annotations

import io
import subprocess
import sys

import fake_reports
import pytest
import torch
from rich.console import Console

from habana_mp import hmp
from habana_mp._report.form import report_of
from habana_mp._report.shown import table
from habana_mp._show import units

AT_80 = """\
train.py: 7.2 ms of 50 ms in casts, 14 %
24 casts, 12 of them from the cache, 16 in backward, 3.8 MB cast
convert: hmp, torch 2.13.0

1. softmax runs in float32 between two linear in bfloat16: try -softmax in
   fp32.txt
   linear -> softmax -> linear casts 4 times: 4.2 % of the block
2. gelu was held before convert: import it after
   net.ACTIVATIONS['gelu'], 4 calls

op         decision calls casts from → to cached in casts share
linear     lower        8    20 fp32→bf16     12   4.5 ms 8.9 %
softmax    fp32         4     4 bf16→fp32      0   2.7 ms 5.4 %
layer_norm lower        4     0                0        0   0 %
gelu       missed       4     0                0        0   0 %
flatten    unlisted     4     0                0        0   0 %

Ping-pong
  4 times  2.1 ms  4.2 %  bf16→fp32→bf16  linear → softmax → linear

Cast again
  8 times, 4 needed  800 µs  fp32→bf16  output of softmax in Net

Missed: held before convert
  4 calls  gelu  net.ACTIVATIONS['gelu']  net.py:7

In no list
  4 calls  200 µs  0.4 %  flatten
"""

AT_120 = """\
train.py: 7.2 ms of 50 ms in casts, 14 %
24 casts, 12 of them from the cache, 16 in backward, 3.8 MB cast
convert: hmp, torch 2.13.0

1. softmax runs in float32 between two linear in bfloat16: try -softmax in fp32.txt
   linear -> softmax -> linear casts 4 times: 4.2 % of the block
2. gelu was held before convert: import it after
   net.ACTIVATIONS['gelu'], 4 calls

op          decision  calls  casts  from → to  cached  cast time  share  op time  rule
linear      lower         8     20  fp32→bf16      12     4.5 ms  8.9 %    13 ms  lists/hmp/lower.txt:22
softmax     fp32          4      4  bf16→fp32       0     2.7 ms  5.4 %   2.5 ms  lists/hmp/fp32.txt:41
layer_norm  lower         4      0                  0          0    0 %   2.0 ms  lists/hmp/lower.txt:20
gelu        missed        4      0                  0          0    0 %   500 µs
flatten     unlisted      4      0                  0          0    0 %   200 µs

Ping-pong
  4 times  2.1 ms  4.2 %  bf16→fp32→bf16  linear → softmax → linear  from Net: fc1

Cast again
  8 times, 4 needed  800 µs  fp32→bf16  output of softmax in Net  for linear

Missed: held before convert
  4 calls  gelu  net.ACTIVATIONS['gelu']  net.py:7

In no list
  4 calls  200 µs  0.4 %  flatten
"""


def text(report: dict, width: int, **console) -> str:
    """What a terminal of this width shows, without the blanks at the ends of lines."""
    file = io.StringIO()
    Console(file=file, width=width, **console).print(table.table(report_of(report)))
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


@pytest.mark.parametrize(("width", "expected"), [(80, AT_80), (120, AT_120)])
def test_the_whole_text(width: int, expected: str) -> None:
    assert text(fake_reports.small(), width) == expected


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "TTY_COMPATIBLE", "LANG"])
def test_str_is_plain_text_as_wide_as_the_terminal(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "1")
    for width, expected in ((80, AT_80), (120, AT_120)):
        monkeypatch.setenv("COLUMNS", str(width))
        assert table.text(report_of(fake_reports.small())) + "\n" == expected


def test_of_long_findings_the_first_are_shown() -> None:
    lines = text(fake_reports.gpt(), 120).splitlines()
    start = lines.index("Cast again")
    assert lines[start + 1].startswith(
        "  6 times, 2 needed  3.1 ms  fp32→bf16  output of layer_norm in GPT: blocks.0.ln1"
    )
    assert lines[start + 5].startswith("  6 times")
    assert lines[start + 6] == "  … and 7 more"
    assert lines[lines.index("Ping-pong") - 2] == "… and 4 more ops"


def test_several_paths_of_one_op() -> None:
    both = [fake_reports.cast("float32", "bfloat16", 5), fake_reports.cast("float16", "bfloat16", 2)]
    report = fake_reports.summed([fake_reports.row("add", casts=both), fake_reports.row("add", decision="off")])
    assert "add promote, o…     2     7 fp32→bf16 +1 " in text(report, 80)
    assert "add  promote, off      2      7  fp32→bf16 5, fp16→bf16 2 " in text(report, 120)


def test_a_narrow_terminal_has_ops_and_their_casts_in_full() -> None:
    shown = text(fake_reports.gpt(), 40)
    assert "op            casts from → to in casts\n" in shown
    assert "cross_entropy     2 bf16→fp32    10 ms\n" in shown


def test_an_empty_report() -> None:
    assert text(fake_reports.empty(), 80) == "Cast report: no op was seen\n"


@pytest.mark.parametrize("width", [40, 80, 120, 200])
@pytest.mark.parametrize("report", ["gpt", "hostile", "small"])
def test_no_line_is_too_long(report: str, width: int) -> None:
    assert max(map(len, text(getattr(fake_reports, report)(), width).splitlines())) <= width


def test_hostile_names_stay_text() -> None:
    shown = text(fake_reports.hostile(), 200, force_terminal=True, color_system=None)
    assert "\x1b" not in shown.replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", "").replace(
        "\x1b[1;2m", ""
    )
    assert "line\ufffdand\ufffdparagraph [red]markup[/red]" in shown
    assert "\udcff" not in shown


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0"),
        (2e-10, "<1 ns"),
        (1e-9, "1.0 ns"),
        (9.94e-6, "9.9 µs"),
        (9.96e-6, "10 µs"),
        (0.0012, "1.2 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.0 s"),
        (12_345.6, "12,346 s"),
    ],
)
def test_times(seconds: float, expected: str) -> None:
    assert units.time(seconds) == expected


@pytest.mark.parametrize(
    ("size", "expected"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (3_400_000, "3.4 MB"), (5.5e12, "5.5 TB")]
)
def test_sizes(size: float, expected: str) -> None:
    assert units.size(size) == expected


@pytest.mark.parametrize(
    ("part", "whole", "expected"),
    [
        (0, 0, "0 %"),
        (0, 1, "0 %"),
        (1, 0, "0 %"),
        (0.0004, 1, "<0.1 %"),
        (0.012, 1, "1.2 %"),
        (11, 100, "11 %"),
        (1, 1, "100 %"),
    ],
)
def test_shares(part: float, whole: float, expected: str) -> None:
    assert units.share(part, whole) == expected


def test_the_package_imports_neither_rich_nor_jinja2() -> None:
    script = "import sys, habana_mp; print(*{'rich', 'jinja2'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == ""


def test_names_of_own_lists_that_nothing_called_are_shown():
    """Names of presets are not: these are for models of all kinds."""
    policy = hmp.Policy.load("balanced").with_edits("+softmin:lower", "+rms_norm:fp32", "+softmax:fp32")
    hmp.convert(policy=policy)
    with hmp.report() as r:
        torch.ones(2, 2).softmax(1)
    shown = str(r).splitlines()
    at = shown.index("In your lists, never called")
    assert shown[at + 1 :] == ["  lower  softmin", "   fp32  rms_norm"]


def test_a_policy_with_names_for_modules_is_named_once():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    policy = hmp.Policy.from_ops(lower=["linear"]).with_edits("+linear in 0:fp32")
    hmp.set_policies(model, policy)
    with hmp.autocast("cpu", policy=policy), hmp.report() as r:
        torch.mm(model(torch.ones(2, 2)), torch.ones(2, 2))
        torch.nn.functional.linear(torch.ones(2, 2), torch.ones(2, 2))
    assert [each["name"] for each in r.to_dict()["policies"]] == ["custom+edits", "custom+edits"]
    assert str(r).splitlines()[2] == f"autocast: custom+edits, torch {torch.__version__}"


def first_ops(lost: dict[str, int], change: dict[str, float]) -> list[str]:
    """Lines of the table of ops, of which there are more than the table has room for, and of which these have no casts."""
    made = fake_reports.gpt()
    made |= {"low_dtype": "float16", "projected_squares": 0.0, "edges": [], "losses": []}
    for row in made["rows"]:
        row["values"] = fake_reports.values(
            ran={**fake_reports.ERROR, "lost": lost.get(row["op"], 0)},
            losses=[fake_reports.loss(change.get(row["op"], 0.0) ** 2)] if change else [],
            calls=row["calls"],
        )
    lines = text(fake_reports.with_losses(made), 120).splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("op "))
    return lines[place + 1 :]


def test_ops_that_lose_numbers_come_first():
    first, *_ = first_ops({"view": 1}, {})
    assert first.startswith("view ")
    assert " not finite" in first


def test_then_those_that_make_most_of_the_error():
    """They were in "more ops": the table was in the order of the time of casts alone."""
    lines = first_ops({"view": 1}, {"gelu": -3e3, "linear": 1.0, "view": 0.0})
    assert [line.split()[0] for line in lines[:3]] == ["view", "gelu", "linear"]
