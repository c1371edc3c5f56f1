"""convert, revert, is_converted: what is converted, and that every object comes back (D1, D7, D8, F5 to F8, F274)."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from namespaces import BF16, F16, F32, OWNERS, a, changed, snapshot
from torch import nn

from habana_mp import hmp

# ---- arguments


@pytest.mark.parametrize("level", ["O1", "o1", "O2", "o2"])
def test_opt_level_in_any_case(level):
    """D1."""
    policy = hmp.convert(opt_level=level)
    assert policy.name == {"O1": "hmp", "O2": "hmp-o2"}[level.upper()]


@pytest.mark.parametrize("level", ["O0", "O3", "", "1", None, 1], ids=repr)
def test_another_opt_level_is_refused(level, pristine):
    """D1."""
    with pytest.raises((ValueError, TypeError), match=r"O1.*O2"):
        hmp.convert(opt_level=level)
    assert changed(pristine, snapshot()) == []


def test_the_defaults_are_the_newer_guides():
    """D3, F5, F6."""
    policy = hmp.convert()
    assert policy == hmp.convert(opt_level="O1", bf16_file_path="", fp32_file_path="", isVerbose=False)
    assert policy == hmp.convert("O1", None, None, False)
    assert policy == hmp.Policy.load("hmp")


@pytest.mark.parametrize(
    ("verbose", "level", "lines"),
    [
        (False, "O1", []),
        (True, "O1", ["hmp:verbose_mode  True", "hmp:opt_level O1"]),
        (True, "o2", ["hmp:verbose_mode  True", "hmp:opt_level O2"]),
    ],
)
def test_the_banner(verbose, level, lines, capsys):
    """D8."""
    hmp.convert(opt_level=level, isVerbose=verbose)
    assert capsys.readouterr().out.splitlines() == lines


# ---- being converted


def test_is_converted():
    assert not hmp.is_converted()
    hmp.convert()
    assert hmp.is_converted()
    hmp.convert()
    assert hmp.is_converted()
    hmp.revert()
    assert not hmp.is_converted()
    hmp.revert()
    assert not hmp.is_converted()


def test_models_made_before_and_after_follow_alike():
    """F7, F8."""
    before = nn.Linear(2, 2)
    hmp.convert()
    after = nn.Linear(2, 2)
    assert before(a()).dtype == after(a()).dtype == BF16
    assert {parameter.dtype for model in (before, after) for parameter in model.parameters()} == {F32}
    hmp.revert()
    assert before(a()).dtype == after(a()).dtype == F32


def test_a_second_convert_replaces_the_first():
    """D7, F274."""
    hmp.convert()
    first = torch.mm
    assert (torch.mm(a(), a()).dtype, torch.softmax(a().bfloat16(), 0).dtype) == (BF16, F32)
    hmp.convert(policy=hmp.Policy.from_ops(lower=["softmax"], low_dtype=F16))
    assert (torch.mm(a(), a()).dtype, torch.softmax(a(), 0).dtype) == (F32, F16)
    hmp.convert()
    assert torch.mm is first
    assert (torch.mm(a(), a()).dtype, torch.softmax(a().bfloat16(), 0).dtype) == (BF16, F32)


def test_convert_while_casts_are_off():
    with hmp.disable_casts():
        hmp.convert()
        assert torch.mm(a(), a()).dtype == F32
    assert torch.mm(a(), a()).dtype == BF16


# ---- the very objects come back


def test_a_conversion_patches_and_revert_restores(pristine):
    """D7."""
    hmp.convert()
    patched = changed(pristine, snapshot())
    assert {"torch.mm", "Tensor.mm", "Tensor.__matmul__", "torch.nn.functional.linear", "torch._C._nn.linear"} <= set(
        patched
    )
    hmp.revert()
    assert changed(pristine, snapshot()) == []


SEQUENCES = {
    "one": ["hmp"],
    "the same again": ["hmp", "hmp"],
    "two": ["hmp", "hmp-o2"],
    "wide, then narrow": ["hmp-o2", "torch-cpu"],
    "every preset": hmp.presets(),
}


@pytest.mark.parametrize("presets", SEQUENCES.values(), ids=SEQUENCES.keys())
def test_everything_comes_back_after(presets, pristine):
    """D7: in order of names too."""
    for preset in presets:
        hmp.convert(policy=preset)
    hmp.revert()
    assert changed(pristine, snapshot()) == []
    for owner, before, after in zip(OWNERS, pristine, snapshot(), strict=True):
        assert [name for name, _ in before] == [name for name, _ in after], owner


def test_revert_without_convert_does_nothing(pristine):
    hmp.revert()
    assert changed(pristine, snapshot()) == []


def test_what_a_user_put_there_before_comes_back(monkeypatch):
    """Ops that a user wrapped are cast, called, and given back."""
    calls = []
    native = torch.mm

    @functools.wraps(native)
    def wrapped(*args, **kwargs):
        calls.append([tensor.dtype for tensor in args])
        return native(*args, **kwargs)

    monkeypatch.setattr(torch, "mm", wrapped)
    hmp.convert()
    assert torch.mm(a(), a()).dtype == BF16
    assert calls == [[BF16, BF16]]
    hmp.revert()
    assert torch.mm is wrapped
    monkeypatch.undo()


def test_revert_copes_with_names_that_others_removed_or_replaced(pristine):
    """D7, whatever the order."""
    hmp.convert()
    del torch.Tensor.mm
    torch.softmax = lambda *args: "mine"
    hmp.revert()
    assert changed(pristine, snapshot()) == []
    assert not hmp.is_converted()


def test_a_kept_patched_op_behaves_as_the_original_after_revert():
    """D7."""
    native = {
        "mm": torch.mm,
        "Tensor.mm": torch.Tensor.mm,
        "F.linear": F.linear,
        "F.softmax": F.softmax,
        "add": torch.Tensor.__add__,
    }
    hmp.convert()
    kept = {
        "mm": torch.mm,
        "Tensor.mm": torch.Tensor.mm,
        "F.linear": F.linear,
        "F.softmax": F.softmax,
        "add": torch.Tensor.__add__,
    }
    args = {"F.softmax": (a(), 0)}
    hmp.revert()
    for name, op in kept.items():
        given = args.get(name, (a(), a()))
        assert torch.equal(op(*given), native[name](*given)), name
        assert torch.equal(op.__call__(*given), native[name](*given)), name
        assert op.rule is None
    with pytest.raises(TypeError, match=r"mm\(\)"):
        kept["mm"](1)


def test_a_kept_patched_op_follows_the_next_convert():
    """D7."""
    hmp.convert()
    mm, method, bound = torch.mm, torch.Tensor.mm, a().mm
    hmp.revert()
    hmp.convert(low_precision_type=F16)
    assert (mm(a(), a()).dtype, method(a(), a()).dtype, bound(a()).dtype) == (F16, F16, F16)
    assert mm is torch.mm
    hmp.convert(policy=hmp.Policy.from_ops(lower=["softmax"]))
    assert (mm(a(), a()).dtype, method(a(), a()).dtype, bound(a()).dtype) == (F32, F32, F32)


def test_a_module_that_kept_a_patched_op():
    hmp.convert()

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.activation = F.relu
            self.op = torch.mm

        def forward(self, x):
            return self.op(self.activation(x), x)

    model = Model()
    assert model(a()).dtype == BF16
    hmp.revert()
    assert model(a()).dtype == F32
