"""What a caller says of the result is never overruled: a target in place, out= or a dtype (D11, D12)."""

# ruff: noqa: PLW0108 - a lambda looks the op up when it is called; the op itself would be torch's own, from before any conversion

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F
from arrived_calls import BF16, F16, F32, F64, arrived, count_casts, dtypes_arrived, ids, named_cases, policy, x
from torch import nn

from habana_mp import hmp

# ---- in place

IN_PLACE = {
    "F.relu, keyword": lambda t: F.relu(t, inplace=True),
    "F.relu, position": lambda t: F.relu(t, True),
    "F.relu, all by keyword": lambda t: F.relu(inplace=True, input=t),
    "F.leaky_relu": lambda t: F.leaky_relu(t, 0.1, inplace=True),
    "F.leaky_relu, position": lambda t: F.leaky_relu(t, 0.1, True),
    "F.dropout": lambda t: F.dropout(t, 0.5, inplace=True),
    "F.dropout, position": lambda t: F.dropout(t, 0.5, True, True),
    "nn.ReLU": lambda t: nn.ReLU(inplace=True)(t),
    "nn.Dropout": lambda t: nn.Dropout(0.5, inplace=True)(t),
    "nn.LeakyReLU": lambda t: nn.LeakyReLU(inplace=True)(t),
    "nn.SiLU": lambda t: nn.SiLU(inplace=True)(t),
    "nn.Hardtanh": lambda t: nn.Hardtanh(inplace=True)(t),
    "nn.ELU": lambda t: nn.ELU(inplace=True)(t),
    "F.threshold": lambda t: F.threshold(t, 0.1, 0.0, True),
    "F.relu_": lambda t: F.relu_(t),
    "torch.relu_": lambda t: torch.relu_(t),
    "Tensor.relu_": lambda t: t.relu_(),
    "torch.dropout_": lambda t: torch.dropout_(t, 0.5, True),
    "exp_": lambda t: t.exp_(),
    "fill_": lambda t: t.fill_(1.0),
    "+= scalar": lambda t: operator.iadd(t, 1),
}


@pytest.mark.parametrize("call", IN_PLACE.values(), ids=IN_PLACE.keys())
@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_the_target_of_an_in_place_call_is_never_cast(level, dtype, call):
    """D11, D12, F74, F79."""
    hmp.convert(opt_level=level)
    target = x(dtype)
    version = target._version
    casts, result = count_casts(lambda: call(target))
    assert casts == 0
    assert result is target
    assert target.dtype == dtype
    assert target._version > version


@pytest.mark.parametrize(
    "call", [lambda t: F.relu(t, inplace=False), lambda t: F.relu(t, False), lambda t: F.dropout(t, 0.5, True, False)]
)
def test_inplace_false_is_an_ordinary_call(call):
    hmp.convert()
    assert call(x()).dtype == BF16


@pytest.mark.parametrize("flag", [False, 0, None], ids=repr)
def test_a_flag_that_is_false_makes_no_call_in_place(flag):
    """D12: what counts is whether inplace is true."""
    hmp.convert()
    if flag is not None:
        assert F.relu(x(F32), flag).dtype == F.relu(x(F32), inplace=flag).dtype == BF16
    assert F.embedding(ids(), x(BF16), max_norm=None).dtype == F32


# call with a target and others of another dtype, the number of casts
IN_PLACE_WITH_OTHERS = {
    "+=": (lambda t, o: operator.iadd(t, o), 1),
    "-=": (lambda t, o: operator.isub(t, o), 1),
    "*= (lower)": (lambda t, o: operator.imul(t, o), 1),
    "/= (fp32)": (lambda t, o: operator.itruediv(t, o), 1),
    "**=": (lambda t, o: operator.ipow(t, o), 1),
    "add_": (lambda t, o: t.add_(o), 1),
    "add_ by keyword": (lambda t, o: t.add_(other=o, alpha=2), 1),
    "addmm_ (lower)": (lambda t, o: t.addmm_(o, o), 1),
    "addmm_ of two": (lambda t, o: t.addmm_(o, o.clone()), 2),
    "addmm_ by keyword": (lambda t, o: t.addmm_(mat1=o, mat2=o.clone()), 2),
    "addcdiv_": (lambda t, o: t.addcdiv_(o, o.clone()), 2),
    "lerp_": (lambda t, o: t.lerp_(o, 0.5), 1),
    "atan2_": (lambda t, o: t.atan2_(o), 1),
    "index_add_": (lambda t, o: t.index_add_(0, ids(), o), 1),
    "index_copy_": (lambda t, o: t.index_copy_(0, ids(), o), 1),
    "index_put_": (lambda t, o: t.index_put_((ids(),), o), 1),
    "torch.index_put_": (lambda t, o: torch.index_put_(t, (ids(),), o), 1),
    "scatter_": (lambda t, o: t.scatter_(0, ids()[None], o), 1),
    "scatter_add_": (lambda t, o: t.scatter_add_(0, ids()[None], o), 1),
    "masked_scatter_": (lambda t, o: t.masked_scatter_(t > 0, o), 1),
    "put_": (lambda t, o: t.put_(ids(), o[0]), 1),
    "baddbmm_": (lambda t, o: t[None].baddbmm_(o[None], o[None].clone()), 2),
}  # fmt: skip


@pytest.mark.parametrize(("call", "casts"), IN_PLACE_WITH_OTHERS.values(), ids=IN_PLACE_WITH_OTHERS.keys())
@pytest.mark.parametrize(("target", "other"), [(F32, BF16), (BF16, F32), (F16, BF16)], ids=str)
def test_the_others_take_the_dtype_of_the_target(call, casts, target, other):
    """D11, D12, F52, F74, F75."""
    hmp.convert()
    t = x(target)
    storage = t.untyped_storage().data_ptr()
    counted, result = count_casts(lambda: call(t, x(other)))
    assert counted == casts
    assert result.dtype == t.dtype == target
    assert result.untyped_storage().data_ptr() == storage


@pytest.mark.parametrize(
    "place", [0, slice(None), (slice(None), 0), torch.tensor([0, 1]), torch.tensor([True, False]), ..., None],
    ids=["int", "slice", "column", "indices", "mask", "ellipsis", "None"],
)  # fmt: skip
@pytest.mark.parametrize(("target", "other"), [(F32, BF16), (BF16, F32), (F16, BF16)], ids=str)
def test_setitem(place, target, other):
    """D12: x[i] = v."""
    hmp.convert()
    t = x(target)
    value = torch.full_like(t[place], 7.0, dtype=other)

    def assign():
        t[place] = value

    casts, _ = count_casts(assign)
    assert casts == 1
    assert t.dtype == target
    assert (t[place] == 7).all()


@pytest.mark.parametrize("target", [F64, torch.int64, torch.complex64], ids=str)
def test_targets_that_are_not_eligible_leave_the_call_alone(target):
    hmp.convert()
    t = x(target)
    assert dtypes_arrived(lambda: operator.iadd(t, x(BF16))) == [target, BF16]
    assert dtypes_arrived(lambda: t.lerp_(x(BF16), x())) == [target, BF16, F32]


def test_a_float64_argument_leaves_an_in_place_call_alone():
    hmp.convert()
    assert dtypes_arrived(lambda: x().addcmul_(x(F64), x(BF16))) == [F32, F64, BF16]


def test_matmul_in_place_is_an_ordinary_matmul():
    """Python has no Tensor.__imatmul__ of its own: a @= b is a = a @ b."""
    hmp.convert()
    t = x()
    before = t
    t @= x()
    assert t.dtype == BF16
    assert before.dtype == F32


def test_a_leaf_that_requires_grad_is_refused_as_ever():
    hmp.convert()
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad is being used in an in-place operation"):
        nn.Parameter(x()).add_(x(BF16))


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize(
    "call",
    [
        lambda w: F.embedding(ids(), w, max_norm=1.0),
        lambda w: F.embedding(ids(), w, None, 1.0),
        lambda w: F.embedding(input=ids(), weight=w, max_norm=1.0),
        lambda w: F.embedding_bag(ids()[None], w, max_norm=1.0),
        lambda w: nn.Embedding.from_pretrained(w, max_norm=1.0)(ids()),
    ],
    ids=["keyword", "position", "all by keyword", "embedding_bag", "nn.Embedding"],
)
def test_max_norm_writes_to_the_weight(call, dtype):
    """D12: the weight is a target."""
    hmp.convert()
    weight = x(dtype) * 1
    weight = (x(dtype) + x(dtype)).to(dtype)
    casts, result = count_casts(lambda: call(weight))
    assert casts == 0
    assert result.dtype == dtype
    assert weight.float().norm(dim=1).max() < 1.01


def test_embedding_without_max_norm_follows_its_list():
    hmp.convert()
    assert F.embedding(ids(), x(BF16)).dtype == F32
    assert F.embedding(ids(), x(BF16), max_norm=None).dtype == F32


# ---- explicit dtype and out


@pytest.mark.parametrize(
    ("call", "dtype"),
    named_cases({
        "softmax(dtype=bf16)": (lambda: torch.softmax(x(BF16), 0, dtype=BF16), BF16),
        "softmax(bf16) by position": (lambda: torch.softmax(x(BF16), 0, BF16), BF16),
        "softmax(dtype=f64)": (lambda: torch.softmax(x(BF16), 0, dtype=F64), F64),
        "Tensor.softmax(dtype=bf16)": (lambda: x(BF16).softmax(0, dtype=BF16), BF16),
        "F.softmax(dtype=bf16)": (lambda: F.softmax(x(BF16), 0, dtype=BF16), BF16),
        "F.softmax(bf16) by position": (lambda: F.softmax(x(BF16), 0, 3, BF16), BF16),
        "F.log_softmax(dtype=bf16)": (lambda: F.log_softmax(x(BF16), 0, dtype=BF16), BF16),
        "softmax(dtype=float)": (lambda: torch.softmax(x(BF16), 0, dtype=float), F64),
        "mm(out=)": (lambda: torch.mm(x(), x(), out=torch.empty(2, 2)), F32),
        "addmm(out=) (F86, F270)": (lambda: torch.addmm(x(), x(), x(), out=torch.empty(2, 2)), F32),
        "cat(out=)": (lambda: torch.cat([x(BF16), x(BF16)], out=torch.empty(4, 2).bfloat16()), BF16),
        "topk(out=)": (lambda: torch.topk(x(BF16), 1, out=(torch.empty(0).bfloat16(), torch.empty(0, dtype=torch.int64)))[0], BF16),
    }),
)  # fmt: skip
def test_an_explicit_dtype_or_out_leaves_the_call_alone(call, dtype):
    """D11, F86, F89, F253."""
    hmp.convert()
    args, kwargs = arrived(call)
    given = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    assert F32 not in [tensor.dtype for tensor in given] or BF16 not in [tensor.dtype for tensor in given]
    assert call().dtype == dtype


@pytest.mark.parametrize(
    ("call", "dtype"),
    named_cases({
        "softmax(dtype=None)": (lambda: torch.softmax(x(BF16), 0, dtype=None), F32),
        "softmax(None) by position": (lambda: torch.softmax(x(BF16), 0, None), F32),
        "F.softmax(dtype=None)": (lambda: F.softmax(x(BF16), 0, 3, None), F32),
        "mm(out=None)": (lambda: torch.mm(x(), x(), out=None), BF16),
    }),
)  # fmt: skip
def test_none_is_not_given(call, dtype):
    """D11."""
    hmp.convert()
    assert call().dtype == dtype


def test_out_by_position():
    """D11: functions of torch.functional take out by position."""
    policy(fp32=["norm"])
    out = torch.empty((), dtype=BF16)
    assert torch.norm(x(BF16), 2, None, False, out) is out
    assert torch.norm(x(BF16), 2, None, False, None).dtype == F32


def test_out_dtype_by_position():
    """D11: mm(a, b, out_dtype), which CPUs do not have."""
    hmp.convert()
    assert dtypes_arrived(lambda: torch.mm(x(), x(), F32)) == [F32, F32]
    assert dtypes_arrived(lambda: torch.mm(x(), x(), out_dtype=F32)) == [F32, F32]
