"""What other tools get of a report: Chrome's trace viewer and TensorBoard."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from habana_mp import hmp


@pytest.fixture(scope="module")
def report():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 2))
    with hmp.autocast("cpu", policy="hmp"), hmp.report(values=True) as seen:
        model(torch.randn(4, 8)).float().sum().backward()
    return seen


def test_a_chrome_trace_has_every_cast_of_the_timeline(report, tmp_path):
    text = report.to_chrome_trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert json.loads(text) == trace
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(events) == report.casts() + report.backward_casts()
    first = events[0]
    assert first["name"] == "linear: float32 -> bfloat16"
    assert first["args"]["module"] == "Sequential: 0"
    assert first["args"]["rule"].startswith("lower: linear")
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in events)
    names = {event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"}
    assert names == {"casts: cast", "casts: cached", "casts: backward"}


class Writer:
    """What torch.utils.tensorboard.SummaryWriter has of it."""

    def __init__(self):
        self.written = []

    def add_scalar(self, tag, value, global_step=None):
        self.written.append((tag, value, global_step))


def test_tensorboard_gets_counts_and_errors(report):
    writer = Writer()
    report.to_tensorboard(writer, 7)
    values = {tag: value for tag, value, _ in writer.written}
    assert {step for *_, step in writer.written} == {7}
    assert values["habana_mp/casts/count"] == report.casts()
    assert values["habana_mp/error/linear"] == pytest.approx(float(report.local_error("linear")))
    assert values["habana_mp/error_share/linear"] == pytest.approx(report.error_share("linear"))


def test_what_is_no_writer():
    with hmp.report() as seen:
        pass
    with pytest.raises(
        TypeError, match=r"writer must have add_scalar, as torch\.utils\.tensorboard\.SummaryWriter has, not 3"
    ):
        seen.to_tensorboard(3)
