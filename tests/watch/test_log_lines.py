"""What ops log under convert: exact lines, exact counts (F105 to F116, D25, D26). test_log.py has where lines go."""

from __future__ import annotations

import contextlib
import io
import os
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from habana_mp import hmp

BANNER = ["hmp:verbose_mode  True", "hmp:opt_level O1"]


class Ops:
    """Reprs of torch's own objects, taken before any convert."""

    mm = repr(torch.mm)
    tensor_mm = repr(torch.Tensor.mm)
    matmul_operator = repr(torch.Tensor.__matmul__)
    linear = repr(F.linear)
    layer_norm = repr(F.layer_norm)
    softmax = repr(F.softmax)
    mse_loss = repr(F.mse_loss)
    relu = repr(F.relu)
    max_pool2d = repr(F.max_pool2d)
    dropout = repr(F.dropout)
    embedding = repr(torch.embedding)
    f_embedding = repr(F.embedding)
    cat = repr(torch.cat)
    add = repr(torch.add)
    add_operator = repr(torch.Tensor.__add__)
    iadd = repr(torch.Tensor.__iadd__)
    add_in_place = repr(torch.Tensor.add_)
    mul_operator = repr(torch.Tensor.__mul__)


def f32(*shape):
    return torch.ones(*shape or (2, 2))


def bf16(*shape):
    return f32(*shape).bfloat16()


def f16(*shape):
    return f32(*shape).half()


@pytest.fixture(autouse=True)
def _converted_by_none(monkeypatch):
    monkeypatch.delenv("HABANA_MP_LOG", raising=False)
    yield
    hmp.revert()


@pytest.fixture
def lists(tmp_path):
    """The arguments of convert for these two lists."""

    def write(lower="", fp32=""):
        paths = {"bf16_file_path": tmp_path / "lower.txt", "fp32_file_path": tmp_path / "fp32.txt"}
        for path, names in zip(paths.values(), (lower, fp32), strict=True):
            path.write_text(names.replace(" ", "\n"))
        return paths

    return write


@pytest.fixture
def logged(capsys):
    """The lines since the last call."""

    def lines():
        return capsys.readouterr().out.splitlines()

    return lines


def test_banner_and_nothing_else(lists, logged):
    hmp.convert(**lists("mm"), isVerbose=True)
    assert logged() == BANNER
    hmp.convert(opt_level="o2", isVerbose=True)
    assert logged() == ["hmp:verbose_mode  True", "hmp:opt_level O2"]


def test_silent_by_default(lists, logged):
    hmp.convert(**lists("mm"))
    torch.mm(f32(), f32())
    assert logged() == []


def in_place_add(target, other):
    target += other  # in place


# fmt: off
LINES = {
    # An op of a list: a line at every call, also where nothing had to be cast.
    "lower": (lambda: torch.mm(f32(), f32()), f"casting  {Ops.mm} to_bf16"),
    "lower-nothing-to-cast": (lambda: torch.mm(bf16(), bf16()), f"casting  {Ops.mm} to_bf16"),
    "lower-method": (lambda: f32().mm(f32()), f"casting  {Ops.tensor_mm} to_bf16"),
    "lower-keyword": (lambda: torch.mm(input=f32(), mat2=f32()), f"casting  {Ops.mm} to_bf16"),
    "lower-operator": (lambda: f32() @ f32(), f"casting  {Ops.matmul_operator} to_bf16"),
    "lower-module": (lambda: nn.Linear(2, 2)(f32()), f"casting  {Ops.linear} to_bf16"),
    "lower-once-for-what-runs-inside": (lambda: F.layer_norm(f32(), (2,)), f"casting  {Ops.layer_norm} to_bf16"),
    "lower-dispatched-by-a-flag": (lambda: F.max_pool2d(f32(1, 2, 2), 2), f"casting  {Ops.max_pool2d} to_bf16"),
    "fp32": (lambda: F.softmax(bf16(), -1), f"casting  {Ops.softmax} to_fp32"),
    "fp32-nothing-to-cast": (lambda: F.softmax(f32(), -1), f"casting  {Ops.softmax} to_fp32"),
    "fp32-inner-function": (lambda: torch.embedding(bf16(), torch.tensor(0)), f"casting  {Ops.embedding} to_fp32"),
    "fp32-outer-function": (lambda: F.embedding(torch.tensor(0), bf16()), f"casting  {Ops.f_embedding} to_fp32"),
    # Promote: the same, in the other form.
    "promote": (lambda: torch.add(bf16(), f32()), f"casting  {Ops.add}  to  to_fp32"),
    "promote-operator": (lambda: bf16() + f32(), f"casting  {Ops.add_operator}  to  to_fp32"),
    "promote-nothing-to-cast": (lambda: bf16() + bf16(), f"casting  {Ops.add_operator}  to  to_bf16"),
    "promote-number": (lambda: bf16() * 2, f"casting  {Ops.mul_operator}  to  to_bf16"),
    "promote-list": (lambda: torch.cat([bf16(), f32()]), f"casting  {Ops.cat}  to  to_fp32"),
    "promote-two-low-types": (lambda: f16() * bf16(), f"casting  {Ops.mul_operator}  to  to_fp32"),
    # In place and first input: only where something is cast.
    "in-place-operator": (lambda: in_place_add(bf16(), f32()), f"casting  {Ops.iadd}  to  to_bf16"),
    "in-place-method": (lambda: f32().add_(bf16()), f"casting  {Ops.add_in_place}  to  to_fp32"),
    "in-place-nothing-to-cast": (lambda: in_place_add(bf16(), bf16()), None),
    "in-place-flag": (lambda: F.relu(f32(), inplace=True), None),
    "first-input": (lambda: F.mse_loss(bf16(), f32()), f"casting  {Ops.mse_loss}  to  to_bf16"),
    "first-input-nothing-to-cast": (lambda: F.mse_loss(f32(), f32()), None),
    # Left alone (D10, D11).
    "float64": (lambda: torch.mm(f32().double(), f32().double()), None),
    "integers": (lambda: torch.mm(f32().int(), f32().int()), None),
    "out": (lambda: torch.mm(f32(), f32(), out=f32()), None),
    "dtype": (lambda: F.softmax(bf16(), -1, dtype=torch.bfloat16), None),
    "unlisted": (lambda: torch.tanh(f32()), None),
}
# fmt: on


@pytest.mark.parametrize(("call", "line"), LINES.values(), ids=LINES)
def test_line(lists, logged, call, line):
    hmp.convert(**lists("mm matmul linear layer_norm relu max_pool2d", "softmax embedding"), isVerbose=True)
    logged()
    with torch.no_grad():
        call()
    assert logged() == ([] if line is None else [line])


def test_a_line_for_every_call(lists, logged):
    hmp.convert(**lists("mm"), isVerbose=True)
    x = f32()
    for _ in range(5):
        torch.mm(x, x)
    assert logged() == BANNER + [f"casting  {Ops.mm} to_bf16"] * 5


def test_the_sample_of_the_guides(lists, logged):
    """F108 to F114: text, order and count, but for the addresses and today's name of the class."""
    hmp.convert(**lists("layer_norm dropout matmul", "embedding"), isVerbose=True)
    f32() * 2
    # F.embedding, which D16 makes a home of its own, has the line where it is what the user calls (against F116).
    x = torch.embedding(f32(4, 2), torch.tensor([0, 1]))
    x = F.layer_norm(x, (2,))
    x = F.dropout(x)
    x = torch.Tensor.matmul(x, x)
    x += f32()
    lines = [re.sub("0x[0-9a-f]+", "0x...", line) for line in logged()]
    assert lines == [
        *BANNER,
        "casting  <method '__mul__' of 'torch._C.TensorBase' objects>  to  to_fp32",
        "casting  <built-in method embedding of type object at 0x...> to_fp32",
        "casting  <function layer_norm at 0x...> to_bf16",
        "casting  <function dropout at 0x...> to_bf16",
        "casting  <method 'matmul' of 'torch._C.TensorBase' objects> to_bf16",
        "casting  <method '__iadd__' of 'torch._C.TensorBase' objects>  to  to_bf16",
    ]


def test_float16(lists, logged, tmp_path):
    paths = lists("mm", "softmax")
    hmp.convert(
        fp16_file_path=paths["bf16_file_path"],
        fp32_file_path=paths["fp32_file_path"],
        low_precision_type=torch.float16,
        isVerbose=True,
    )
    y = torch.mm(f32(), f32())
    F.softmax(y, -1)
    in_place_add(y, f32())
    assert y.dtype is torch.float16
    assert logged() == [
        *BANNER,
        f"casting  {Ops.mm} to_fp16",
        f"casting  {Ops.softmax} to_fp32",
        f"casting  {Ops.iadd}  to  to_fp16",
    ]


def test_none_inside_disable_casts(lists, logged):
    """F104."""
    hmp.convert(**lists("mm"), isVerbose=True)
    with hmp.disable_casts():
        torch.mm(f32(), f32())
        bf16() + f32()
    assert logged() == BANNER
    torch.mm(f32(), f32())
    assert logged() == [f"casting  {Ops.mm} to_bf16"]


def test_none_after_revert(lists, logged):
    hmp.convert(**lists("mm"), isVerbose=True)
    hmp.revert()
    torch.mm(f32(), f32())
    assert logged() == BANNER


def test_a_second_convert_decides_anew(lists, logged):
    hmp.convert(**lists("mm"), isVerbose=True)
    hmp.convert(**lists("mm"))
    torch.mm(f32(), f32())
    assert logged() == BANNER


def test_o2_logs_its_rest_where_something_is_cast(logged):
    hmp.convert(opt_level="O2", isVerbose=True)
    torch.mm(f32(), f32())
    F.softmax(bf16(), -1)
    F.softmax(f32(), -1)
    f32() + f32()
    assert logged() == [
        "hmp:verbose_mode  True",
        "hmp:opt_level O2",
        f"casting  {Ops.mm} to_bf16",
        f"casting  {Ops.softmax} to_fp32",
    ]


@pytest.mark.parametrize("value", ["loud", "casts:", "casts:/nowhere/casts.log"])
def test_a_bad_variable_converts_nothing(lists, monkeypatch, value):
    original = torch.mm
    monkeypatch.setenv("HABANA_MP_LOG", value)
    with pytest.raises((ValueError, FileNotFoundError), match="HABANA_MP_LOG="):
        hmp.convert(**lists("mm"))
    assert not hmp.is_converted()
    assert torch.mm is original


def test_a_failing_convert_leaves_the_log_of_the_first(lists, logged, monkeypatch, tmp_path):
    paths = lists("mm")
    hmp.convert(**paths, isVerbose=True)
    monkeypatch.setenv("HABANA_MP_LOG", f"casts:{tmp_path}/other.log")
    with pytest.raises(FileNotFoundError):
        hmp.convert(bf16_file_path=tmp_path / "missing.txt")
    torch.mm(f32(), f32())
    assert logged() == [*BANNER, f"casting  {Ops.mm} to_bf16"]
    assert not (tmp_path / "other.log").exists()


def test_redirect_stdout(lists, logged):
    hmp.convert(**lists("mm"), isVerbose=True)
    with contextlib.redirect_stdout(io.StringIO()) as redirected:
        torch.mm(f32(), f32())
    assert redirected.getvalue() == f"casting  {Ops.mm} to_bf16\n"
    assert logged() == BANNER


def test_a_ctrl_c_in_stdout_ends_the_op(lists, logged):
    class Interrupted(io.StringIO):
        def write(self, text):
            raise KeyboardInterrupt

    hmp.convert(**lists("mm"), isVerbose=True)
    with contextlib.redirect_stdout(Interrupted()), pytest.raises(KeyboardInterrupt):
        torch.mm(f32(), f32())
    assert torch.mm(f32(), f32()).dtype is torch.bfloat16
    assert logged() == [*BANNER, f"casting  {Ops.mm} to_bf16"]


def test_a_file_wins_over_stdout(lists, logged, monkeypatch, tmp_path):
    file = tmp_path / "casts.log"
    monkeypatch.setenv("HABANA_MP_LOG", f"casts:{file}")
    hmp.convert(**lists("mm"), isVerbose=True)
    torch.mm(f32(), f32())
    assert logged() == []
    assert file.read_text().splitlines() == [*BANNER, f"casting  {Ops.mm} to_bf16"]


class Products(Dataset):
    """Each item is one logged op, run where the item is loaded."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.mm(f32(), f32()) * 0 + index


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
class TestForkedWorkers:
    """Whole lines, none twice and none lost: one mm, one multiplication and one addition an item."""

    ONE_ITEM = (
        f"casting  {Ops.mm} to_bf16",
        f"casting  {Ops.mul_operator}  to  to_bf16",
        f"casting  {Ops.add_operator}  to  to_bf16",
    )

    @staticmethod
    def load(workers):
        loader = DataLoader(Products(), batch_size=4, num_workers=workers, multiprocessing_context="fork")
        with torch.no_grad():
            return [int(x) for batch in loader for x in batch[:, 0, 0]]

    def test_file(self, lists, monkeypatch, tmp_path):
        file = tmp_path / "casts.log"
        monkeypatch.setenv("HABANA_MP_LOG", f"casts:{file}")
        hmp.convert(**lists("mm"))
        assert self.load(workers=2) == list(range(40))
        assert sorted(file.read_text().splitlines()) == sorted(self.ONE_ITEM * 40)

    def test_a_file_for_each(self, lists, monkeypatch, tmp_path):
        monkeypatch.setenv("HABANA_MP_LOG", f"casts:{tmp_path}/%p.log")
        hmp.convert(**lists("mm"))
        self.load(workers=2)
        files = {path.name: path.read_text().splitlines() for path in tmp_path.glob("*.log")}
        assert files.pop(f"{os.getpid()}.log") == []
        assert [sorted(lines) for lines in files.values()] == [sorted(self.ONE_ITEM * 20)] * 2

    def test_stdout(self, lists, capfd):
        hmp.convert(**lists("mm"), isVerbose=True)
        self.load(workers=2)
        torch.mm(f32(), f32())
        lines = capfd.readouterr().out.splitlines()
        assert lines[:2] == BANNER
        assert sorted(lines[2:]) == sorted([*self.ONE_ITEM * 40, f"casting  {Ops.mm} to_bf16"])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 2, bias=False), nn.Linear(2, 2)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)  # layers
        return F.softmax(x, -1)  # softmax


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x):
        return torch.cat([self.block(x), x.bfloat16()])  # cat


def line_of(mark):
    """FILE:LINE of the line here that ends with the comment."""
    lines = Path(__file__).read_text().splitlines()
    return f"{__file__}:{next(number for number, line in enumerate(lines, 1) if line.endswith('# ' + mark))}"


def test_detail(lists, logged, monkeypatch, tmp_path):
    """D26. The first line of each is what the other level writes."""
    monkeypatch.setenv("HABANA_MP_LOG", "detail")
    hmp.convert(**lists("linear", "#\ntanh\nsoftmax"))
    Net()(f32())
    torch.mm(bf16(), f32())  # mm
    in_place_add(bf16(), f32())
    lower, fp32 = f"lower: linear, {tmp_path}/lower.txt:1", f"fp32: softmax, {tmp_path}/fp32.txt:3"
    lines = logged()
    for line, pattern in zip(
        lines,
        [
            f"casting  {Ops.linear} to_bf16",
            f"    0: float32 -> bfloat16, 1: float32 -> bfloat16 | {lower} | Net: block.layers.0 | {line_of('layers')}",
            f"casting  {Ops.linear} to_bf16",
            f"    1: float32 -> bfloat16, 2: float32 -> bfloat16 | {lower} | Net: block.layers.1 | {line_of('layers')}",
            f"casting  {Ops.softmax} to_fp32",
            f"    0: bfloat16 -> float32 | {fp32} | Net: block | {line_of('softmax')}",
            f"casting  {Ops.cat}  to  to_fp32",
            f"    0[1]: bfloat16 -> float32 | promote: cat, FILE | Net | {line_of('cat')}",
            f"casting  {Ops.mm}  to  to_bf16",
            f"    1: float32 -> bfloat16 | rest: first_input | {line_of('mm')}",
            f"casting  {Ops.iadd}  to  to_bf16",
            f"    1: float32 -> bfloat16 | in place | {line_of('in place')}",
        ],
        strict=True,
    ):
        assert re.fullmatch(re.escape(pattern).replace("FILE", r"\S+/hmp/promote\.txt:\d+"), line)
