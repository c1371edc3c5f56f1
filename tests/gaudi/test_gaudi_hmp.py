"""hmp as scripts for Gaudi call it: convert and disable_casts in every form that a client uses (F1 to F8, D1 to D9)."""

from __future__ import annotations

import os
import tempfile
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import habana_mp.gaudi  # noqa: F401 - makes the next line work

from habana_frameworks.torch.hpex import hmp  # isort: skip

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16


def dtypes():
    """Of a matrix product and of a softmax of bfloat16: lower and fp32 by default, fp32 and lower by the lists of ``written``."""
    x = torch.ones(2, 2)
    return (x @ x).dtype, torch.softmax((x @ x).bfloat16(), 0).dtype


DEFAULT, GIVEN = (BF16, F32), (F32, BF16)


@pytest.fixture
def written(tmp_path):
    lower, fp32 = tmp_path / "ops_bf16.txt", tmp_path / "ops_fp32.txt"
    lower.write_text("softmax\n")
    fp32.write_text("matmul\nmm\n")
    return lower, fp32


# --- convert: keyword, positional, the newer guide's form and the older one's


@pytest.mark.parametrize(
    "call",
    [
        hmp.convert,
        lambda: hmp.convert(opt_level="O1"),
        lambda: hmp.convert("O1"),
        lambda: hmp.convert(opt_level="O1", bf16_file_path="", fp32_file_path="", isVerbose=False),
        lambda: hmp.convert("O1", "", "", False),
        lambda: hmp.convert(bf16_file_path=None, fp32_file_path=None, isVerbose=False),
        lambda: hmp.convert("O1", None, None),
        lambda: hmp.convert(bf16_file_path="", fp32_file_path=None),
        lambda: hmp.convert("o1", isVerbose=0),
    ],
    ids=["newer", "level", "positional level", "older", "positional", "None", "None positional", "mixed", "falsy"],
)
def test_the_built_in_lists_f4_f5_f6(call):
    call()
    assert dtypes() == DEFAULT


@pytest.mark.parametrize("kind", [str, Path, os.fspath], ids=["str", "Path", "fspath"])
@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda lower, fp32: hmp.convert(bf16_file_path=lower, fp32_file_path=fp32), GIVEN),
        (lambda lower, fp32: hmp.convert("O1", lower, fp32), GIVEN),
        (lambda lower, fp32: hmp.convert("O1", lower, fp32, False), GIVEN),
        (lambda lower, fp32: hmp.convert("O1", fp32_file_path=fp32), GIVEN),
        (lambda lower, fp32: hmp.convert("O1", None, fp32), GIVEN),
        (lambda lower, fp32: hmp.convert("O1", fp32, ""), DEFAULT),
    ],
    ids=["keywords", "positional", "all positional", "fp32 alone", "None and fp32", "bf16 and empty"],
)
def test_lists_of_one_s_own_f42(written, kind, call, expected):
    call(*map(kind, written))
    assert dtypes() == expected


def test_temporary_files_that_are_deleted_right_after(written):
    """As scripts do that write their lists from the command line or a configuration."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as lower, tempfile.NamedTemporaryFile("w") as fp32:
        lower.write("softmax\n")
        fp32.write("matmul\nmm")
        lower.flush()
        fp32.flush()
        hmp.convert(bf16_file_path=lower.name, fp32_file_path=fp32.name)
    assert dtypes() == GIVEN
    with hmp.disable_casts():
        assert dtypes() == (F32, BF16)
    assert "softmax" in str(hmp.explain("softmax"))
    hmp.revert()
    hmp.convert()
    assert dtypes() == DEFAULT


@pytest.mark.parametrize("level", ["O2", "o2"])
def test_o2_with_the_lists_that_a_script_always_gives(written, level):
    with pytest.warns(UserWarning, match="O2"):
        hmp.convert(level, *written)
    assert dtypes() == DEFAULT


def test_twice(written):
    """A script whose library converts too, or which goes from O2 to lists."""
    hmp.convert("O2")
    hmp.convert("O1", *written)
    assert dtypes() == GIVEN
    hmp.convert("O1", *written)
    assert dtypes() == GIVEN
    hmp.convert()
    assert dtypes() == DEFAULT


@pytest.mark.parametrize("order", ["before the model", "after the optimizer"])
def test_where_it_stands_f7(order):
    torch.manual_seed(0)
    if order == "before the model":
        hmp.convert()
    model = nn.Linear(1024, 512)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if order == "after the optimizer":
        hmp.convert()
    loss = F.mse_loss(model(torch.randn(64, 1024)), torch.randn(64, 512))
    loss.backward()
    with hmp.disable_casts():
        optimizer.step()
    assert (loss.dtype, model.weight.dtype, model.weight.grad.dtype) == (BF16, F32, F32)


# --- disable_casts


def test_disable_casts_without_convert():
    """A script that is run without --hmp has the block too."""
    p = nn.Parameter(torch.ones(2))
    p.grad = torch.ones(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with hmp.disable_casts():
            torch.optim.SGD([p], lr=0.5).step()

        @hmp.disable_casts()
        def f():
            return dtypes()

        assert f() == (F32, BF16)
    assert p.tolist() == [0.5, 0.5]
    assert not hmp.is_converted()


# --- Together with torch.autocast


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_convert_inside_and_around_torch_autocast(dtype):
    """The lists cast first; what they leave in float32, autocast takes."""
    x = torch.ones(2, 2)
    hmp.convert()
    with torch.autocast("cpu", dtype):
        assert (x @ x).dtype == dtype  # autocast casts what convert has cast
        assert torch.softmax(x, 0).dtype == F32
        with hmp.disable_casts():
            assert (x @ x).dtype == dtype  # of torch's autocast it says nothing
    assert (x @ x).dtype == BF16
    hmp.revert()
    with torch.autocast("cpu", dtype):
        hmp.convert()
        assert F.softmax(x, 0).dtype == F32
        hmp.revert()
        assert (x @ x).dtype == dtype
    assert (x @ x).dtype == F32


def test_training_under_both():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 4))
    x, y = torch.randn(16, 8), torch.randint(4, (16,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    hmp.convert()
    losses = []
    for _ in range(10):
        with torch.autocast("cpu", BF16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        with hmp.disable_casts():
            optimizer.step()
        losses.append(loss.item())
    assert loss.dtype == F32
    assert losses[-1] < losses[0]
    assert {p.grad.dtype for p in model.parameters()} == {F32}
