"""A convert or a revert that fails: all of it or none of it (D7, D24)."""

from __future__ import annotations

import contextlib
import gc
import sys
import types

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from namespaces import F16, F32, a, changed, snapshot

from habana_mp import hmp
from habana_mp._torch_private import CHECKPOINT, SCRIPTED


class Refusing(types.ModuleType):
    """A module that refuses one name, as a frozen or lazy one would."""

    refused: str

    def __setattr__(self, name, value):
        if name == type(self).refused:
            raise AttributeError(f"{name} is frozen")
        super().__setattr__(name, value)


@contextlib.contextmanager
def refusing(module, name):
    kind = type(module)
    module.__class__ = type("Refusing", (Refusing,), {"refused": name})
    try:
        yield
    finally:
        module.__class__ = kind


def bad_level(tmp_path, monkeypatch):
    return {"opt_level": "O7"}, ValueError


def bad_dtype(tmp_path, monkeypatch):
    return {"low_precision_type": F32}, ValueError


def missing_list(tmp_path, monkeypatch):
    return {"bf16_file_path": tmp_path / "absent.txt"}, FileNotFoundError


def directory_as_list(tmp_path, monkeypatch):
    return {"fp32_file_path": tmp_path}, IsADirectoryError


def bad_line(tmp_path, monkeypatch):
    (tmp_path / "list.txt").write_text("mm\nno op!\n")
    return {"bf16_file_path": tmp_path / "list.txt"}, ValueError


def unknown_name(tmp_path, monkeypatch):
    (tmp_path / "list.txt").write_text("mm\nlienar\n")
    return {"bf16_file_path": tmp_path / "list.txt", "strict": True}, ValueError


def op_in_both_lists(tmp_path, monkeypatch):
    for name in ("lower.txt", "fp32.txt"):
        (tmp_path / name).write_text("mm\n")
    return {"bf16_file_path": tmp_path / "lower.txt", "fp32_file_path": tmp_path / "fp32.txt"}, ValueError


def unknown_policy(tmp_path, monkeypatch):
    return {"policy": "no-such-preset"}, ValueError


def log_that_cannot_be_opened(tmp_path, monkeypatch):
    monkeypatch.setenv("HABANA_MP_LOG", f"casts:{tmp_path}/absent/log.txt")
    return {}, OSError


def bad_log_level(tmp_path, monkeypatch):
    monkeypatch.setenv("HABANA_MP_LOG", "loud")
    return {}, ValueError


def verbosity_that_is_a_word(tmp_path, monkeypatch):
    return {"isVerbose": "no"}, TypeError


def strictness_that_is_a_word(tmp_path, monkeypatch):
    return {"strict": "yes"}, TypeError


FAILURES = [
    bad_level,
    verbosity_that_is_a_word,
    strictness_that_is_a_word,
    bad_dtype,
    missing_list,
    directory_as_list,
    bad_line,
    unknown_name,
    op_in_both_lists,
    unknown_policy,
    log_that_cannot_be_opened,
    bad_log_level,
]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.__name__)
def test_a_convert_that_fails_converts_nothing(failure, tmp_path, monkeypatch, pristine):
    """D7, D24."""
    arguments, error = failure(tmp_path, monkeypatch)
    with pytest.raises(error):
        hmp.convert(**arguments)
    monkeypatch.undo()
    assert changed(pristine, snapshot()) == []
    assert not hmp.is_converted()
    assert torch.mm(a(), a()).dtype == F32
    assert gc.isenabled()


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.__name__)
def test_a_second_convert_that_fails_leaves_the_first_in_force(failure, tmp_path, monkeypatch, pristine, capsys):
    """D7."""
    hmp.convert(low_precision_type=F16, isVerbose=True)
    first, mm = snapshot(), repr(pristine[0][[name for name, _ in pristine[0]].index("mm")][1])
    arguments, error = failure(tmp_path, monkeypatch)
    with pytest.raises(error):
        hmp.convert(**arguments)
    monkeypatch.undo()
    assert changed(first, snapshot()) == []
    assert hmp.is_converted()
    capsys.readouterr()
    assert torch.mm(a(), a()).dtype == F16
    assert capsys.readouterr().out == f"casting  {mm} to_fp16\n"
    hmp.revert()
    assert changed(pristine, snapshot()) == []


FROZEN = {
    "torch.nn.functional": (F, "relu"),
    "torch": (torch, "mm"),
    "torch.special": (torch.special, "softmax"),
    "torch._C._linalg": (sys.modules["torch._C._linalg"], "linalg_inv"),
    "torch.jit": SCRIPTED.place("compile"),
    "torch.utils.checkpoint": CHECKPOINT.place("generator"),
    "the last one": (sys.modules["habana_mp._scope.in_force"], "verbose"),
}


@pytest.mark.parametrize(("module", "name"), FROZEN.values(), ids=FROZEN.keys())
def test_a_home_that_cannot_be_patched_fails_the_whole_conversion(module, name, pristine):
    """D7: at the first home, in between and at the last assignment."""
    with refusing(module, name), pytest.raises(AttributeError, match=f"{name} is frozen"):
        hmp.convert(opt_level="O2")
    assert changed(pristine, snapshot()) == []
    assert not hmp.is_converted()
    assert torch.mm(a(), a()).dtype == F32


def test_a_second_convert_that_fails_in_a_home_leaves_the_first_in_force(pristine):
    """D7: the first one does not touch that home."""
    hmp.convert(policy=hmp.Policy.from_ops(lower=["mm", "conv2d"], low_dtype=F16))
    first = snapshot()
    with refusing(torch.special, "softmax"), pytest.raises(AttributeError, match="softmax is frozen"):
        hmp.convert(opt_level="O2")
    assert changed(first, snapshot()) == []
    assert torch.mm(a(), a()).dtype == F16
    assert torch.softmax(a().half(), 0).dtype == F16
    hmp.revert()
    assert changed(pristine, snapshot()) == []


def test_a_revert_undoes_all_but_what_refuses(pristine):
    """A home that cannot be undone keeps no other from it."""
    mm = torch.mm
    hmp.convert()
    with refusing(torch, "mm"), pytest.raises(AttributeError, match="mm is frozen"):
        hmp.revert()
    assert changed(pristine, snapshot()) == ["torch.mm"]
    assert not hmp.is_converted()
    assert torch.mm(a(), a()).dtype == F32
    torch.mm = mm


def test_a_second_convert_that_cannot_undo_the_first_leaves_it_in_force(pristine):
    """D7."""
    hmp.convert(low_precision_type=F16)
    first = snapshot()
    with refusing(torch, "mm"), pytest.raises(AttributeError, match="mm is frozen"):
        hmp.convert("O2")
    assert changed(first, snapshot()) == []
    assert torch.mm(a(), a()).dtype == F16
    hmp.revert()
    assert changed(pristine, snapshot()) == []
