"""What the log tells of a region of hmp.autocast (D26)."""

from __future__ import annotations

import pytest
import torch
from autocast_policies import BF16, A, mat

import habana_mp._core as _core
from habana_mp import hmp

pytestmark = pytest.mark.usefixtures("autocast_as_it_was")


def logged(capsys, level: str, monkeypatch, function) -> list[str]:
    monkeypatch.setenv("HABANA_MP_LOG", level)
    try:
        function()
    finally:
        _core.close_log()
    return capsys.readouterr().out.splitlines()


def test_log(capsys, monkeypatch) -> None:
    def run() -> None:
        with hmp.autocast("cpu", policy=A):
            torch.mm(mat(), mat())
            torch.softmax(mat(), 0)
            torch.cat([mat(BF16), mat()])
            torch.mul(mat(), mat())
            with hmp.disable_casts():
                torch.mm(mat(), mat())

    assert logged(capsys, "casts", monkeypatch, run) == [
        "casting  <OpOverload(op='aten.mm', overload='default')> to_bf16",
        "casting  <OpOverload(op='aten.softmax', overload='int')> to_fp32",
        "casting  <OpOverload(op='aten.cat', overload='default')>  to  to_fp32",
    ]


def test_log_in_detail(capsys, monkeypatch) -> None:
    """D26"""

    def run() -> None:
        with hmp.autocast("cpu"):
            torch.nn.Sequential(torch.nn.Linear(4, 4))(mat())
            torch.cat([mat(BF16), mat()])

    lines = logged(capsys, "detail", monkeypatch, run)
    assert lines[0] == "casting  <OpOverload(op='aten.linear', overload='default')> to_bf16"
    assert lines[1].startswith(
        "    input: float32 -> bfloat16, weight: float32 -> bfloat16, bias: float32 -> bfloat16 | lower: linear, "
    )
    assert "lists/torch-cpu/lower.txt:" in lines[1]
    assert " | Sequential: 0 | " in lines[1]
    assert lines[1].partition("test_autocast_log.py:")[1]
    assert "tensors[0]: bfloat16 -> float32 | promote: cat, " in lines[3]


def test_the_log_names_ops_as_python_does() -> None:
    assert repr(torch.ops.aten.softmax.int) == "<OpOverload(op='aten.softmax', overload='int')>"
