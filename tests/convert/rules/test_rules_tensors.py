"""Which tensors of a call a rule casts: wherever they stand, each one once, and only if they are eligible (D10, D13, D38)."""

# ruff: noqa: PLW0108 - a lambda looks the op up when it is called; the op itself would be torch's own, from before any conversion

from __future__ import annotations

import collections
import operator
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from arrived_calls import BF16, F16, F32, F64, arrived, count_casts, dtypes_arrived, ids, named_cases, policy, x
from torch import nn

from habana_mp import hmp

# ---- where tensors are found


@pytest.mark.parametrize(
    ("call", "casts"),
    named_cases({
        "by position": (lambda: torch.mm(x(), x()), 2),
        "by keyword": (lambda: torch.mm(input=x(), mat2=x()), 2),
        "by position and keyword": (lambda: F.linear(x(), weight=x(), bias=x()[0]), 3),
        "method, by keyword": (lambda: x().mm(mat2=x()), 2),
        "keyword of a Python function": (lambda: F.layer_norm(input=x(), normalized_shape=(2,)), 1),
        "keyword that is no interned string": (lambda: torch.mm(x(), **{"mat2_"[:4]: x()}), 2),
        "None among them": (lambda: F.linear(x(), x(), None), 2),
        "one in the low dtype already": (lambda: torch.mm(x(BF16), x()), 1),
        "all in the low dtype": (lambda: torch.mm(x(BF16), x(BF16)), 0),
        "float16 too": (lambda: torch.mm(x(F16), x(F16)), 2),
        "a Parameter": (lambda: torch.mm(nn.Parameter(x()), x()), 2),
        "module": (lambda: nn.Linear(2, 2)(x()), 3),
        "list": (lambda: torch.linalg.multi_dot([x(), x(), x()]), 3),
        "tuple": (lambda: torch.linalg.multi_dot((x(), x(), x())), 3),
        "operands after a string": (lambda: torch.einsum("ij,jk->ik", x(), x()), 2),
        "operands in a list": (lambda: torch.einsum("ij,jk->ik", [x(), x()]), 2),
    }),
)  # fmt: skip
def test_tensors_are_found_wherever_they_stand(call, casts):
    """F16, F55, F68."""
    policy(lower=["mm", "linear", "layer_norm", "multi_dot", "einsum"])
    assert count_casts(call)[0] == casts
    assert call().dtype == BF16


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


class Remembering(list):
    note = None


def remembering():
    tensors = Remembering([x(BF16), x(), x(BF16)])
    tensors.note = "kept"
    return tensors


CONTAINERS = {
    "list": lambda: [x(BF16), x()],
    "tuple": lambda: (x(BF16), x()),
    "named tuple": lambda: Pair(x(BF16), x()),
    "collections.namedtuple": lambda: collections.namedtuple("Two", "a b")(x(BF16), x()),  # noqa: PYI024
    "torch.return_types": lambda: torch.return_types.aminmax((x(BF16), x())),
    "list subclass": remembering,
    "torch.Size-like of three": lambda: [x(BF16), x(), x(F16)],
}


@pytest.mark.parametrize("container", CONTAINERS.values(), ids=CONTAINERS.keys())
@pytest.mark.parametrize(
    "call", [lambda given: torch.cat(given), lambda given: torch.cat.__call__(given)], ids=["slot", "__call__"]
)
def test_containers_keep_their_type_and_are_not_changed(container, call):
    """D13."""
    hmp.convert()
    given = container()
    before = list(given)
    (reached, *_), _ = arrived(lambda: call(given))
    assert type(reached) is type(given)
    assert [tensor.dtype for tensor in reached] == [F32] * len(given)
    assert getattr(reached, "note", None) == getattr(given, "note", None)
    assert all(now is then for now, then in zip(given, before, strict=True))
    assert torch.cat(list(given)).dtype == F32


def test_containers_keep_their_type_by_keyword():
    hmp.convert()
    given = Pair(x(BF16), x())
    _, kwargs = arrived(lambda: torch.cat(tensors=given, dim=1))
    assert type(kwargs["tensors"]) is Pair
    assert [tensor.dtype for tensor in kwargs["tensors"]] == [F32, F32]
    assert kwargs["dim"] == 1


def test_lists_with_other_things_in_them_keep_those():
    hmp.convert()
    mask = torch.tensor([True, False])
    (_, indices, _), _ = arrived(lambda: torch.index_put(x(BF16), (None, mask), x(F32, 4)[:2]))
    assert indices == (None, mask)


@pytest.mark.parametrize("broken", [False, True], ids=["", "the call fails"])
def test_the_callers_arguments_are_never_changed(broken):
    hmp.convert()
    tensors = [x(BF16), torch.ones(2, 2 + broken), x()]
    before = list(tensors)
    keywords = {"tensors": tensors, "dim": 0}
    copied = dict(keywords)
    if broken:
        with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
            torch.cat(**keywords)
    else:
        assert torch.cat(**keywords).dtype == F32
    assert keywords == copied
    assert keywords["tensors"] is tensors
    assert all(map(operator.is_, tensors, before))
    assert [tensor.dtype for tensor in tensors] == [BF16, F32, F32]


def test_a_list_that_shrinks_while_its_tensors_are_cast():
    """A tensor subclass may do anything in its ``to``: the call fails, or runs, and nothing is read that is gone."""

    class Clearing(torch.Tensor):
        given = ()

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            if cls.given:
                cls.given.clear()
                del cls.given
            return super().__torch_function__(func, types, args, kwargs)

    policy(lower=["mm", "cat"])
    for _ in range(100):
        first = x().as_subclass(Clearing)
        Clearing.given = given = [x() for _ in range(20)]
        with pytest.raises((IndexError, TypeError)):
            torch.mm(first, given)
        Clearing.given = given = [x().as_subclass(Clearing), *(x() for _ in range(20))]
        with pytest.raises(IndexError):
            torch.cat(given)


def test_hidden_state_in_a_tuple():
    hmp.convert()
    cell = nn.LSTMCell(2, 2)
    h, c = cell(x(BF16), (x(F32), x(F16)))
    assert (h.dtype, c.dtype) == (BF16, BF16)


# ---- one tensor twice


@pytest.mark.parametrize(
    ("call", "casts"),
    named_cases({
        "mm(a, a)": (lambda a: torch.mm(a, a), 1),
        "a @ a": (lambda a: a @ a, 1),
        "three in a list": (lambda a: torch.linalg.multi_dot([a, a, a]), 1),
        "position and keyword": (lambda a: F.linear(a, weight=a), 1),
        "a view is another tensor": (lambda a: torch.mm(a, a[:]), 2),
    }),
)  # fmt: skip
def test_a_tensor_given_twice_is_cast_once(call, casts):
    policy(lower=["mm", "matmul", "multi_dot", "linear", "scaled_dot_product_attention"])
    assert count_casts(lambda: call(x()))[0] == casts


def test_a_tensor_given_twice_stays_one():
    """Self-attention compares its inputs by identity."""
    policy(lower=["scaled_dot_product_attention", "mm", "multi_dot"])
    a = x()
    for call in (
        lambda: torch.mm(a, a),
        lambda: F.scaled_dot_product_attention(a, a, value=a),
        lambda: torch.mm(a, mat2=a),
    ):
        args, kwargs = arrived(call)
        tensors = [*args, *kwargs.values()]
        assert all(tensor is tensors[0] for tensor in tensors)
        assert tensors[0].dtype == BF16
    (tensors,), _ = arrived(lambda: torch.linalg.multi_dot([a, a]))
    assert tensors[0] is tensors[1]
    assert tensors[0].dtype == BF16


# ---- eligibility


@pytest.mark.parametrize(
    ("call", "dtype"),
    named_cases({
        "mm of float64": (lambda: torch.mm(x(F64), x(F64)), F64),
        "softmax of float64": (lambda: torch.softmax(x(F64), 0), F64),
        "cat of float64 and bfloat16": (lambda: torch.cat([x(F64), x(BF16)]), F64),
        "add of float64 and float32": (lambda: x(F64) + x(), F64),
        "add of a 0-dim float64 tensor": (lambda: x(BF16) + torch.tensor(1.0, dtype=F64), BF16),
        "mul of integers": (lambda: ids() * ids(), torch.int64),
        "mul of bools": (lambda: torch.tensor([True]) * torch.tensor([False]), torch.bool),
        "mm of complex": (lambda: torch.mm(x(torch.complex64), x(torch.complex64)), torch.complex64),
        "topk of integers": (lambda: torch.topk(ids(), 1)[0], torch.int64),
        "div of integers": (lambda: ids() / ids(), F32),
        "no tensor at all": (lambda: torch.add(torch.tensor(1), 1), torch.int64),
    }),
)  # fmt: skip
def test_what_is_not_eligible_is_left_alone(call, dtype):
    """D10, F82, F83, F91, F252."""
    assert call().dtype == dtype
    hmp.convert()
    casts, result = count_casts(call)
    assert (casts, result.dtype) == (0, dtype)


def test_other_tensors_beside_eligible_ones_are_left_alone():
    hmp.convert()
    assert dtypes_arrived(lambda: F.embedding(ids(), x(BF16))) == [torch.int64, F32]
    assert dtypes_arrived(lambda: torch.where(x() > 1, x(BF16), x())) == [torch.bool, BF16, BF16]


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("kind", [torch.complex32, torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("rule", ["lower", "promote", "fp32", "rest"])
def test_a_complex_tensor_leaves_the_call_alone_as_float64_does(rule, kind):
    """D10: torch computes in a wider kind of number, for which the real operand is not rounded."""
    policy(rest="first_input", **({rule: ["mul"]} if rule != "rest" else {}))
    for real in (F32, BF16):
        assert dtypes_arrived(lambda real=real: x(real) * x(kind)) == [real, kind]
        assert dtypes_arrived(lambda real=real: torch.mul(x(kind), other=x(real))) == [kind, real]
        assert dtypes_arrived(lambda real=real: torch.mul.__call__(x(real), x(kind))) == [real, kind]


def test_a_real_operand_beside_a_complex_one_keeps_its_digits():
    """D10."""
    real, given = torch.tensor([1.00415]), torch.tensor([1 + 2j], dtype=torch.complex128)
    expected = real * given
    hmp.convert()
    assert torch.equal(real * given, expected)
    assert torch.equal(torch.mul.__call__(real, given), expected)


@pytest.mark.parametrize("scalar", [2, 2.5, True], ids=["int", "float", "bool"])
def test_python_scalars_are_no_float64_tensors(scalar):
    """D38."""
    hmp.convert()
    assert (x() * scalar).dtype == BF16
    assert (x(BF16) + scalar).dtype == BF16
    assert (scalar + x(BF16)).dtype == BF16
    assert (x(BF16) / scalar).dtype == F32
