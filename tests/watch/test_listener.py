"""A third listener, beside the log and the report: it hears of the same calls, and needs no line elsewhere."""

from collections import Counter

import pytest
import torch

from habana_mp import hmp
from habana_mp._watch.listener import CallListener


@pytest.fixture
def net():
    return torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Softmax(-1))


@pytest.mark.parametrize("front_end", ["convert", "autocast"])
def test_it_counts_by_op_what_the_report_counts(net, front_end):
    x = torch.randn(4, 128)
    if front_end == "convert":
        hmp.convert()
    with (
        hmp.autocast("cpu", policy="hmp", enabled=front_end == "autocast"),
        hmp.report() as report,
        CallListener() as listener,
    ):
        net(x)
        net(x)
        calls = listener.take()
    counts = Counter(call.op for call in calls if call.front_end)
    assert counts == {"linear": 2, "relu": 2, "softmax": 2}
    rows = [row for row in report.to_dict()["rows"] if row["front_end"]]
    assert counts == Counter({row["op"]: row["calls"] for row in rows})
    assert {call.front_end for call in calls if call.op in counts} == {front_end}
    linear = next(call for call in calls if call.op == "linear")
    assert (linear.module, linear.policy, linear.decision, linear.dtypes, linear.runs_in) == (
        "Sequential: 0",
        "hmp",
        "lower",
        ["float32"],
        ["bfloat16"],
    )
    assert [(cast.source, cast.target) for cast in linear.casts] == [("float32", "bfloat16")] * 3


def test_it_takes_each_call_once_and_hears_nothing_outside(net):
    x = torch.randn(4, 128)
    hmp.convert()
    with CallListener() as listener:
        net(x)
        assert listener.take()
        assert listener.take() == []
        net(x)
    net(x)
    assert sum(call.op == "linear" for call in listener.take()) == 1
    assert listener.lost == 0


def test_it_needs_no_report_and_no_log(net):
    hmp.convert()
    with CallListener() as outer, CallListener() as inner:
        net(torch.randn(4, 128))
    assert [call.op for call in outer.take()] == [call.op for call in inner.take()]


def test_a_listener_that_cannot_listen_leaves_no_hooks():
    """Ctrl-C, for one."""

    class Interrupted:
        def open(self):
            raise KeyboardInterrupt

    listener = CallListener()
    listener._queue = Interrupted()
    with pytest.raises(KeyboardInterrupt), listener:
        pass
    assert not torch.nn.modules.module._global_forward_hooks
