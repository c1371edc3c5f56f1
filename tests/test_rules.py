"""What happens to the arguments of a call: exact dtypes and exact numbers of casts (D10 to D15, D19, D31, D38)."""

# ruff: noqa: PLW0108 - a lambda looks the op up when it is called; the op itself would be torch's own, from before any conversion

from __future__ import annotations

import collections
import contextlib
import functools
import operator
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from habana_mp import hmp

F32, BF16, F16, F64 = torch.float32, torch.bfloat16, torch.float16, torch.float64


class CastCount(TorchDispatchMode):
    """Counts the casts that are made."""

    def __init__(self):
        super().__init__()
        self.casts = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.casts += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


class Arrived(TorchFunctionMode):
    """Keeps the last call of torch's own functions as it reaches them."""

    args = kwargs = None

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.args, self.kwargs = args, kwargs or {}
        return func(*args, **(kwargs or {}))


def arrived(call):
    """The arguments with which a call reaches torch's own function, whether it can do the rest or not."""
    with Arrived() as mode, contextlib.suppress(Exception):
        call()
    return mode.args, mode.kwargs


def dtypes_arrived(call):
    args, kwargs = arrived(call)
    return [value.dtype for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]


def count_casts(call):
    with CastCount() as mode:
        result = call()
    return mode.casts, result


def in_dtype(tensor, dtype):
    with _disable_current_modes():  # this is no cast that counts
        return tensor.to(dtype)


def x(dtype=F32, *shape):
    return in_dtype(torch.linspace(0.5, 2, 4).reshape(shape or (2, 2)), dtype)


def image(dtype=F32):
    return in_dtype(torch.linspace(0, 1, 32).reshape(1, 2, 4, 4), dtype)


def policy(rest="inputs", low_dtype=BF16, **lists):
    return hmp.convert(policy=hmp.Policy.from_ops(rest=rest, low_dtype=low_dtype, **lists))


def ids():
    return torch.tensor([0, 1])


def named_cases(table):
    return [pytest.param(*row, id=name) for name, row in table.items()]


# ---- where tensors are found

LINEAR = {"input": x, "weight": x, "bias": lambda: x(F32, 4)[:2]}


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


# ---- promote


@pytest.mark.parametrize(
    ("dtypes", "to", "casts"),
    [
        ([BF16, BF16], BF16, 0),
        ([BF16, F32], F32, 1),
        ([F32, BF16], F32, 1),
        ([F16, F16], F16, 0),
        ([F16, F32], F32, 1),
        ([F16, BF16], F32, 2),
        ([BF16, F16, BF16], F32, 3),
        ([BF16, F16, F32], F32, 2),
        ([F64, BF16], F64, 0),
    ],
    ids=str,
)
def test_promote_takes_the_widest(dtypes, to, casts):
    """D13, F64, F66, F72, F254."""
    hmp.convert()
    for op in (torch.cat, torch.hstack, torch.vstack, torch.stack):
        counted, result = count_casts(lambda op=op: op([x(dtype) for dtype in dtypes]))
        assert (counted, result.dtype) == (casts, to)


@pytest.mark.parametrize(
    ("call", "dtypes"),
    named_cases({
        "add bf16, f32": (lambda: torch.add(x(BF16), x()), [F32, F32]),
        "f16 + bf16": (lambda: x(F16) + x(BF16), [F32, F32]),
        "bf16 + f32 scalar tensor": (lambda: x(BF16) + torch.tensor(1.0), [BF16, BF16]),
        "f32 scalar tensor + bf16": (lambda: torch.tensor(1.0) + x(BF16), [BF16, BF16]),
        "f32 + bf16 scalar tensor": (lambda: x() + torch.tensor(1.0, dtype=BF16), [F32, F32]),
        "two scalar tensors": (lambda: torch.tensor(1.0) + torch.tensor(1.0, dtype=BF16), [F32, F32]),
        "f16 + bf16 scalar tensor": (lambda: x(F16) + torch.tensor(1.0, dtype=BF16), [F16, F16]),
        "pow": (lambda: x(BF16) ** x(), [F32, F32]),
        "addcmul": (lambda: torch.addcmul(x(), x(BF16), x(BF16)), [F32, F32, F32]),
        "addcdiv, keyword": (lambda: torch.addcdiv(x(BF16), tensor1=x(), tensor2=x(BF16)), [F32, F32, F32]),
        "sub": (lambda: x(BF16) - x(), [F32, F32]),
        "rsub": (lambda: torch.rsub(x(BF16), x()), [F32, F32]),
    }),
)  # fmt: skip
def test_promote_of_pairs(call, dtypes):
    """D13, D18, F250."""
    hmp.convert()
    assert dtypes_arrived(call) == dtypes


def test_promote_with_one_tensor_keeps_its_dtype():
    """F69."""
    hmp.convert(policy="hpu-autocast")
    policy(promote=["exp"])
    assert torch.exp(x(BF16)).dtype == BF16
    assert torch.exp(x()).dtype == F32


# ---- the rest: first input


@pytest.mark.parametrize(
    ("call", "dtypes"),
    named_cases({
        "mse_loss bf16, f32 (F77)": (lambda: F.mse_loss(x(BF16), x()), [BF16, BF16]),
        "mse_loss f32, bf16": (lambda: F.mse_loss(x(), x(BF16)), [F32, F32]),
        "mse_loss by keyword": (lambda: F.mse_loss(input=x(BF16), target=x()), [BF16, BF16]),
        "keywords in another order": (lambda: F.mse_loss(target=x(), input=x(BF16)), [BF16, BF16]),
        "l1_loss": (lambda: F.l1_loss(x(F16), x()), [F16, F16]),
        "where": (lambda: torch.where(x() > 1, x(BF16), x()), [torch.bool, BF16, BF16]),
        "Tensor.where": (lambda: x(BF16).where(x() > 1, x()), [BF16, torch.bool, BF16]),
        "index_put": (lambda: torch.index_put(x(BF16), (ids(),), x()), [BF16, BF16]),
        "index_copy": (lambda: torch.index_copy(x(BF16), 0, ids(), x()), [BF16, torch.int64, BF16]),
        "index_add": (lambda: torch.index_add(x(), 0, ids(), x(BF16)), [F32, torch.int64, F32]),
        "scatter": (lambda: x(BF16).scatter(0, ids()[None], x()), [BF16, torch.int64, BF16]),
        "maximum": (lambda: torch.maximum(x(BF16), x()), [BF16, BF16]),
        "lerp": (lambda: torch.lerp(x(BF16), x(), x()), [BF16, BF16, BF16]),
        "bilinear": (lambda: F.bilinear(x(BF16), x(), x(F32, 1, 2, 2)), [BF16, BF16, BF16]),
        "cosine_similarity": (lambda: F.cosine_similarity(x(BF16), x()), [BF16, BF16]),
        "outer": (lambda: torch.outer(x(BF16)[0], x()[0]), [BF16, BF16]),
        "atan2": (lambda: torch.atan2(x(BF16), x()), [BF16, BF16]),
        "masked_fill": (lambda: x(BF16).masked_fill(x() > 1, torch.tensor(0.0)), [BF16, torch.bool, BF16]),
        "baddbmm": (lambda: torch.baddbmm(x(BF16, 1, 2, 2), x(F32, 1, 2, 2), x(F32, 1, 2, 2)), [BF16, BF16, BF16]),
        "one tensor": (lambda: torch.exp(x(BF16)), [BF16]),
        "alike": (lambda: F.mse_loss(x(), x()), [F32, F32]),
        "float64 present": (lambda: F.mse_loss(x(BF16), x(F64)), [BF16, F64]),
        "comparison is left alone (D15)": (lambda: x(BF16) > x(), [BF16, F32]),
        "equal is left alone": (lambda: torch.eq(x(BF16), x()), [BF16, F32]),
        "type_as is left alone": (lambda: x(BF16).type_as(x()), [BF16, F32]),
        "to(other) is left alone": (lambda: x(BF16).to(x()), [BF16, F32]),
        "copy_ is left alone": (lambda: x(BF16).copy_(x()), [BF16, F32]),
        "result_type is left alone": (lambda: torch.result_type(x(BF16), x()), [BF16, F32]),
    }),
)  # fmt: skip
def test_the_rest_takes_the_dtype_of_the_first_input(call, dtypes):
    """D15, F76 to F78."""
    hmp.convert()
    assert dtypes_arrived(call) == dtypes


@pytest.mark.parametrize("name", ["hmp", "hmp-o1", "hmp-resnet50"])
def test_recurrent_layers_take_the_dtype_of_their_input(name):
    """D15, D16."""
    hmp.convert(policy=name)
    for layer in (nn.LSTM(2, 3), nn.GRU(2, 3), nn.RNN(2, 3)):
        assert layer(x(BF16, 1, 2, 2))[0].dtype == BF16
        assert layer(x(F32, 1, 2, 2))[0].dtype == F32
    for cell in (nn.LSTMCell(2, 3), nn.GRUCell(2, 3), nn.RNNCell(2, 3)):
        result = cell(x(BF16))
        assert (result[0] if isinstance(result, tuple) else result).dtype == BF16


def test_packed_sequences():
    hmp.convert()
    packed = nn.utils.rnn.pack_padded_sequence(x(BF16, 2, 1, 2), torch.tensor([2]))
    assert nn.LSTM(2, 3)(packed)[0].data.dtype == BF16


@pytest.mark.parametrize(
    ("name", "y", "loss"),
    [("hmp", BF16, BF16), ("hmp-o1", BF16, BF16), ("hmp-o2", BF16, F32), ("hpu-autocast", BF16, F32), ("torch-cpu", BF16, F32)],
)  # fmt: skip
def test_the_guides_linear_layer(name, y, loss):
    """F242 to F245."""
    hmp.convert(policy=name)
    model = nn.Linear(8, 4)
    y_pred = model(torch.ones(2, 8))
    result = F.mse_loss(y_pred, torch.zeros(2, 4))
    result.backward()
    assert (y_pred.dtype, result.dtype) == (y, loss)
    assert [parameter.grad.dtype for parameter in model.parameters()] == [F32, F32]


def test_rest_inputs_leaves_unlisted_ops_alone():
    """F81."""
    policy(lower=["mm"])
    assert dtypes_arrived(lambda: F.mse_loss(x(BF16), x())) == [BF16, F32]
    assert dtypes_arrived(lambda: x(BF16).index_add_(0, ids(), x())) == [BF16, torch.int64, F32]
    with pytest.raises(RuntimeError):
        torch.bmm(x(BF16, 1, 2, 2), x(F32, 1, 2, 2))


@pytest.mark.parametrize("flag", [False, 0, None], ids=repr)
def test_a_flag_that_is_false_makes_no_call_in_place(flag):
    """D12: what counts is whether inplace is true."""
    hmp.convert()
    if flag is not None:
        assert F.relu(x(F32), flag).dtype == F.relu(x(F32), inplace=flag).dtype == BF16
    assert F.embedding(ids(), x(BF16), max_norm=None).dtype == F32


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


# ---- norms

NORMS = {
    "F.batch_norm": (
        lambda t: F.batch_norm(t.input, t.mean, t.var, t.weight, t.bias, training=True), "input mean var weight bias",
    ),
    "F.batch_norm, keywords": (
        lambda t: F.batch_norm(t.input, running_var=t.var, running_mean=t.mean, bias=t.bias, weight=t.weight),
        "input var mean bias weight",
    ),
    "F.batch_norm, input by keyword": (
        lambda t: F.batch_norm(running_mean=t.mean, running_var=t.var, input=t.input), "mean var input",
    ),
    "torch.batch_norm": (
        lambda t: torch.batch_norm(t.input, t.weight, t.bias, t.mean, t.var, True, 0.1, 1e-5, False), "input weight bias mean var",
    ),
    "F.instance_norm": (
        lambda t: F.instance_norm(t.input, t.mean, t.var, t.weight, t.bias), "input mean var weight bias",
    ),
    "torch.instance_norm": (
        lambda t: torch.instance_norm(t.input, t.weight, t.bias, t.mean, t.var, True, 0.1, 1e-5, False), "input weight bias mean var",
    ),
    "torch.native_batch_norm": (
        lambda t: torch.native_batch_norm(t.input, t.weight, t.bias, t.mean, t.var, True, 0.1, 1e-5), "input weight bias mean var",
    ),
    "torch._native_batch_norm_legit": (
        lambda t: torch._native_batch_norm_legit(t.input, t.weight, t.bias, t.mean, t.var, True, 0.1, 1e-5),
        "input weight bias mean var",
    ),
    "torch._native_batch_norm_legit without statistics": (
        lambda t: torch._native_batch_norm_legit(t.input, t.weight, t.bias, True, 0.1, 1e-5), "input weight bias",
    ),
    "torch._native_batch_norm_legit_no_training": (
        lambda t: torch._native_batch_norm_legit_no_training(t.input, t.weight, t.bias, t.mean, t.var, 0.1, 1e-5),
        "input weight bias mean var",
    ),
    "torch._batch_norm_impl_index": (
        lambda t: torch._batch_norm_impl_index(t.input, t.weight, t.bias, t.mean, t.var, True, 0.1, 1e-5, False),
        "input weight bias mean var",
    ),
    "torch.cudnn_batch_norm": (
        lambda t: torch.cudnn_batch_norm(t.input, t.weight, t.bias, t.mean, t.var, True, 0.1, 1e-5), "input weight bias mean var",
    ),
    "torch.miopen_batch_norm": (
        lambda t: torch.miopen_batch_norm(t.input, t.weight, t.bias, t.mean, t.var, True, 0.1, 1e-5), "input weight bias mean var",
    ),
    "torch.native_layer_norm": (lambda t: torch.native_layer_norm(t.input, (4,), t.wide, t.wide, 1e-5), "input wide wide"),
    "torch.native_group_norm": (
        lambda t: torch.native_group_norm(t.input, t.weight, t.bias, 1, 2, 16, 1, 1e-5), "input weight bias",
    ),
    "F.layer_norm": (lambda t: F.layer_norm(t.input, (4,), t.wide, t.wide), "input wide wide"),
    "F.layer_norm, keywords": (lambda t: F.layer_norm(t.input, (4,), bias=t.wide, weight=t.wide), "input wide wide"),
    "torch.layer_norm": (lambda t: torch.layer_norm(t.input, (4,), t.wide, t.wide), "input wide wide"),
    "F.group_norm": (lambda t: F.group_norm(t.input, 1, t.weight, t.bias), "input weight bias"),
    "torch.group_norm": (lambda t: torch.group_norm(t.input, 1, t.weight, t.bias), "input weight bias"),
}  # fmt: skip


class NormTensors:
    def __init__(self, input_dtype, others):
        self.input = image(input_dtype)
        self.weight, self.bias, self.mean, self.var = (torch.ones(2, dtype=others) for _ in range(4))
        self.wide = torch.ones(4, dtype=others)


@pytest.mark.parametrize(("call", "order"), NORMS.values(), ids=NORMS.keys())
@pytest.mark.parametrize(
    ("action", "given", "others", "input_to", "affine_to"),
    [
        ("lower", F32, F32, BF16, F32),
        ("lower", F32, BF16, BF16, BF16),
        ("fp32", BF16, BF16, F32, F32),
        ("fp32", BF16, F32, F32, F32),
        ("rest", BF16, F32, BF16, F32),
        ("rest", F32, BF16, F32, BF16),
    ],
)
def test_arguments_of_norms(call, order, action, given, others, input_to, affine_to):
    """D14, F61, F62, F132: statistics are never cast, weight and bias in fp32 only, nothing there beside statistics of a low dtype."""
    if action == "fp32" and others != F32 and "mean" in order:
        input_to, affine_to = given, others
    names = [
        "batch_norm", "instance_norm", "layer_norm", "group_norm", "native_batch_norm", "_native_batch_norm_legit",
        "_native_batch_norm_legit_no_training", "_batch_norm_impl_index", "cudnn_batch_norm", "miopen_batch_norm",
        "native_layer_norm", "native_group_norm",
    ]  # fmt: skip
    policy(rest="first_input", **({action: names} if action != "rest" else {}))
    tensors = NormTensors(given, others)
    kinds = {
        "input": input_to,
        "weight": affine_to,
        "bias": affine_to,
        "wide": affine_to,
        "mean": others,
        "var": others,
    }
    args, kwargs = arrived(lambda: call(tensors))
    reached = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    expected = order.split()
    if kwargs:  # torch names all that it was given
        assert sorted(str(t.dtype) for t in reached) == sorted(str(kinds[name]) for name in expected)
    else:
        assert [t.dtype for t in reached] == [kinds[name] for name in expected]
    statistics = [tensors.mean, tensors.var]
    assert sum(any(t is s for s in statistics) for t in reached) == sum(name in ("mean", "var") for name in expected)


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize(
    "make", [nn.BatchNorm2d, functools.partial(nn.InstanceNorm2d, track_running_stats=True)], ids=["batch", "instance"]
)
def test_running_statistics_are_kept(make, level):
    """F61."""
    module, twin = make(2), make(2)
    hmp.convert(opt_level=level)
    mean, given = module.running_mean, image() + 3
    result = module(given)
    hmp.revert()
    by_hand = twin(given.to(BF16 if level == "O1" else F32))
    assert module.running_mean is mean
    assert mean.dtype == F32
    assert torch.equal(mean, twin.running_mean)
    assert torch.equal(module.running_var, twin.running_var)
    assert mean.abs().min() > 0.3
    assert torch.equal(result, by_hand)


def test_running_statistics_are_kept_of_the_op_below():
    """D14: a name that is reached by its own home too."""
    policy(lower=["native_batch_norm"])
    mean, var = torch.zeros(2), torch.ones(2)
    result, *_ = torch.native_batch_norm(image() + 3, torch.ones(2), torch.zeros(2), mean, var, True, 0.1, 1e-5)
    assert result.dtype == BF16
    assert mean.abs().min() > 0.3


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("lists", [{"fp32": ["batch_norm", "instance_norm"]}, {"rest": "fp32"}], ids=["listed", "rest"])
@pytest.mark.parametrize(
    "make", [nn.BatchNorm2d, functools.partial(nn.InstanceNorm2d, track_running_stats=True)], ids=["batch", "instance"]
)
def test_low_statistics_leave_a_norm_in_its_dtype(make, lists, training):
    """D14: torch takes no float32 input beside bfloat16 statistics, and they are not cast."""
    module, twin = make(2).bfloat16().train(training), make(2).bfloat16().train(training)
    given = image(BF16) + 3
    expected = twin(given)
    policy(**lists)
    assert dtypes_arrived(lambda: F.batch_norm(given, module.running_mean, module.running_var)) == [BF16] * 3
    result = module(given)
    assert result.dtype == BF16
    assert torch.equal(result, expected)
    assert torch.equal(module.running_mean, twin.running_mean)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize(
    "make",
    [lambda: nn.BatchNorm2d(2), lambda: nn.InstanceNorm2d(2, affine=True), lambda: nn.LayerNorm(4), lambda: nn.GroupNorm(1, 2)],
    ids=["batch", "instance", "layer", "group"],
)  # fmt: skip
def test_norm_modules(make, training):
    hmp.convert()
    module = make().train(training)
    given = image().requires_grad_()
    result = module(given)
    result.sum().backward()
    assert result.dtype == BF16
    assert given.grad.dtype == F32
    assert {parameter.grad.dtype for parameter in module.parameters()} == {F32}


# ---- O2


@pytest.mark.parametrize(
    ("call", "dtype"),
    named_cases({
        "linear": (lambda: F.linear(x(), x()), BF16),
        "conv2d": (lambda: F.conv2d(image(), torch.ones(1, 2, 2, 2)), BF16),
        "conv_transpose2d": (lambda: F.conv_transpose2d(image(), torch.ones(2, 1, 2, 2)), BF16),
        "mm": (lambda: torch.mm(x(), x()), BF16),
        "@": (lambda: x() @ x(), BF16),
        "addmm": (lambda: torch.addmm(x(), x(), x()), BF16),
        "baddbmm": (lambda: torch.baddbmm(x(F32, 1, 2, 2), x(F32, 1, 2, 2), x(F32, 1, 2, 2)), BF16),
        "dot": (lambda: torch.dot(x(F32, 4), x(F32, 4)), BF16),
        "mv": (lambda: torch.mv(x(), x()[0]), BF16),
        "softmax": (lambda: torch.softmax(x(BF16), 0), F32),
        "add": (lambda: x(BF16) + x(BF16), F32),
        "mul by a number": (lambda: x(BF16) * 2, F32),
        "relu": (lambda: torch.relu(x(BF16)), F32),
        "gelu": (lambda: F.gelu(x(BF16)), F32),
        "layer_norm": (lambda: F.layer_norm(x(BF16), (2,)), F32),
        "mean": (lambda: x(BF16).mean(), F32),
        "embedding": (lambda: F.embedding(ids(), x(BF16)), F32),
        "cat": (lambda: torch.cat([x(BF16), x(BF16)]), F32),
        "mse_loss": (lambda: F.mse_loss(x(BF16), x(BF16)), F32),
        "exp": (lambda: torch.exp(x(F16)), F32),
        "norm": (lambda: torch.linalg.norm(x(BF16)), F32),
        "lstm": (lambda: nn.LSTM(2, 2)(x(BF16, 1, 2, 2))[0], F32),
        "-x": (lambda: -x(BF16), F32),
        "transformer layer": (lambda: nn.TransformerEncoderLayer(2, 1, 2)(x(F32, 1, 2, 2)), F32),
        "float64": (lambda: torch.mm(x(F64), x(F64)), F64),
        "+= ": (lambda: operator.iadd(x(BF16), x()), BF16),
        "view": (lambda: x(BF16).view(4), BF16),
    }),
)  # fmt: skip
def test_o2(call, dtype):
    """D4, F235."""
    hmp.convert(opt_level="O2")
    assert call().dtype == dtype


# ---- atomic and transparent ops


@pytest.mark.parametrize(
    ("lists", "call", "dtype", "casts"),
    named_cases({
        "F.layer_norm calls torch.layer_norm": ({"lower": ["layer_norm"]}, lambda: F.layer_norm(x(), (2,)), BF16, 1),
        "normalize, norm and div inside": ({"fp32": ["normalize"], "lower": ["norm", "div", "linalg_vector_norm"]}, lambda: F.normalize(x(BF16)), F32, 1),
        "1 / x, reciprocal and mul inside": ({"fp32": ["div"], "lower": ["mul", "reciprocal"]}, lambda: 1 / x(BF16), F32, 1),
        "1 / x, nothing to cast": ({"fp32": ["div"], "lower": ["mul", "reciprocal"]}, lambda: 1 / x(), F32, 0),
        "softmin, softmax inside": ({"fp32": ["softmin"], "lower": ["softmax", "neg"]}, lambda: F.softmin(x(BF16), 0), F32, 1),
        "softmin unlisted, softmax inside": ({"fp32": ["softmax"]}, lambda: F.softmin(x(BF16), 0), F32, 1),
        "cross_entropy, its parts listed": ({"fp32": ["cross_entropy"], "lower": ["log_softmax", "nll_loss"]}, lambda: F.cross_entropy(x(BF16), ids()), F32, 1),
        "tensordot unlisted, in C++": ({"lower": ["mm"]}, lambda: torch.tensordot(x(), x(), 1), F32, 0),
        "promote is transparent": ({"promote": ["normalize"], "lower": ["div"]}, lambda: F.normalize(x()), BF16, 2),
    }),
)  # fmt: skip
def test_listed_ops_are_atomic_and_others_transparent(lists, call, dtype, casts):
    """D19, F272."""
    policy(**lists)
    counted, result = count_casts(call)
    assert (counted, result.dtype) == (casts, dtype)


def test_attention_follows_the_lists_inside(capsys):
    """D19: F.multi_head_attention_forward is in no list; two linears, one softmax."""
    hmp.convert(isVerbose=True)
    capsys.readouterr()
    module = nn.MultiheadAttention(4, 2)
    a = torch.ones(3, 1, 4)
    module(a, a, a)
    lines = capsys.readouterr().out.splitlines()
    named = [line.split()[2] if "built-in" not in line else line.split()[3] for line in lines]
    assert sum("linear" in line for line in lines) == 2, named
    assert sum("softmax" in line for line in lines) == 1, named


def test_an_error_inside_an_atomic_op_leaves_casts_on():
    hmp.convert()
    for dtype in (F32, BF16):
        with pytest.raises(RuntimeError):
            F.layer_norm(x(dtype), (3,))
        assert torch.mm(x(), x()).dtype == BF16


# ---- error action


@pytest.mark.parametrize("name", ["torch-cuda", "torch-xpu"])
@pytest.mark.parametrize(
    "call",
    [
        lambda p: F.binary_cross_entropy(p, p),
        lambda p: nn.BCELoss()(p, p),
        lambda p: torch._C._nn.binary_cross_entropy(p, p),
    ],
    ids=["F", "nn.BCELoss", "torch._C._nn"],
)
@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
def test_binary_cross_entropy_is_refused(name, call, dtype):
    """D31, F184 to F186, F190."""
    hmp.convert(policy=name)
    p = torch.tensor([0.25, 0.75], dtype=dtype)
    with pytest.raises(
        RuntimeError,
        match=r"^torch\.nn\.functional\.binary_cross_entropy and torch\.nn\.BCELoss are unsafe to autocast",
    ):
        call(p)
    assert F.binary_cross_entropy_with_logits(p, p).dtype == F32
    with hmp.disable_casts():
        assert call(p).dtype == dtype
    hmp.revert()
    assert call(p).dtype == dtype


@pytest.mark.parametrize("name", ["xpu", "torch-cpu", "hpu-autocast", "hmp"])
def test_binary_cross_entropy_runs_in_float32_elsewhere(name):
    """D31, F187 to F189."""
    hmp.convert(policy=name)
    p = torch.tensor([0.25, 0.75], dtype=BF16)
    assert F.binary_cross_entropy(p, p).dtype == F32


# ---- gradients


def cast_nodes(result):
    """The casts in a graph, as (from, to) is not to be seen there: their number."""
    seen, waiting, count = set(), [result.grad_fn], 0
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        count += node.name() in ("ToCopyBackward0", "CopyBackwards")
        waiting += [following for following, _ in node.next_functions]
    return count


@pytest.mark.parametrize(
    ("call", "nodes"),
    named_cases({
        "mm": (lambda a, w: torch.mm(a, w), 2),
        "mm of one tensor": (lambda a, w: torch.mm(a, a), 1),
        "linear": (lambda a, w: F.linear(a, w), 2),
        "two uses of a weight": (lambda a, w: torch.mm(torch.mm(a, w), w), 3),
        "nothing to cast": (lambda a, w: torch.exp(a), 0),
        "up and down": (lambda a, w: torch.softmax(torch.mm(a, w), 0), 3),
    }),
)  # fmt: skip
def test_casts_stand_in_the_graph(call, nodes):
    """F18."""
    hmp.convert()
    a, w = x().requires_grad_(), x().requires_grad_()
    assert cast_nodes(call(a, w)) == nodes


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (lambda: nn.Linear(2, 3), x),
        (lambda: nn.Conv2d(2, 1, 2), image),
        (lambda: nn.ConvTranspose2d(2, 1, 2), image),
        (lambda: nn.LSTM(2, 3), lambda: x(F32, 1, 2, 2)),
        (lambda: nn.GRUCell(2, 3), x),
        (lambda: nn.Bilinear(2, 2, 3), x),
        (lambda: nn.PReLU(), x),
        (lambda: nn.TransformerEncoderLayer(2, 1, 2), lambda: x(F32, 1, 2, 2)),
    ],
    ids=["Linear", "Conv2d", "ConvTranspose2d", "LSTM", "GRUCell", "Bilinear", "PReLU", "TransformerEncoderLayer"],
)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_gradients_come_in_the_dtype_of_their_tensor(make, given, dtype):
    """F242, F245."""
    hmp.convert()
    module, a = make(), given().to(dtype).requires_grad_()
    result = module(a, a) if isinstance(module, nn.Bilinear) else module(a)
    (result[0] if isinstance(result, tuple) else result).float().sum().backward()
    assert a.grad.dtype == dtype
    assert {parameter.grad.dtype for parameter in module.parameters()} == {F32}


def test_casts_of_tensors_without_grad_need_none():
    hmp.convert()
    assert not torch.mm(x(), x()).requires_grad
    with torch.no_grad():
        assert not torch.mm(x().requires_grad_(), x()).requires_grad
    with torch.inference_mode():
        assert torch.mm(x(), x()).is_inference()


# ---- float16, and the layout of casts


def test_float16_as_the_low_dtype():
    """D9."""
    hmp.convert(low_precision_type=F16)
    assert torch.mm(x(), x()).dtype == F16
    assert torch.mm(x(BF16), x(F16)).dtype == F16
    assert torch.softmax(x(F16), 0).dtype == F32
    assert F.mse_loss(x(F16), x()).dtype == F16
    assert (x(F16) + x(BF16)).dtype == F32


LAYOUTS = {
    "contiguous": lambda: torch.ones(2, 3, 4, 5),
    "transposed": lambda: torch.ones(2, 3, 5, 4).transpose(2, 3),
    "channels last": lambda: torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "channels last, one channel": lambda: torch.ones(2, 1, 4, 5).to(memory_format=torch.channels_last),
    "channels last, one pixel": lambda: torch.ones(2, 3, 1, 1).to(memory_format=torch.channels_last),
    "one channel, large": lambda: torch.ones(2, 1, 64, 64).to(memory_format=torch.channels_last),
    "expanded": lambda: torch.ones(1, 3, 1, 5).expand(2, 3, 4, 5),
    "strided": lambda: torch.ones(4, 6, 8, 10)[::2, ::2, ::2, ::2],
    "offset": lambda: torch.ones(5, 3, 4, 5)[3:],
    "stride 0 of size 1": lambda: torch.ones(4).expand(1, 4),
    "empty": lambda: torch.ones(0, 3, 4, 5),
}


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize(("given", "to"), [(F32, BF16), (F16, BF16), (BF16, F32), (F16, F32)], ids=str)
@pytest.mark.parametrize("grad", [False, True], ids=["", "grad"])
def test_a_cast_has_the_layout_of_to(make, given, to, grad):
    policy(**({"lower": ["abs"]} if to == BF16 else {"fp32": ["abs"]}))
    tensor = make().to(given).requires_grad_(grad)
    (reached,), _ = arrived(lambda: torch.abs(tensor))
    with hmp.disable_casts():
        expected = tensor.to(to)
    assert reached.dtype == to
    assert (reached.shape, reached.stride()) == (expected.shape, expected.stride())
    assert torch.equal(reached, expected)


@pytest.mark.parametrize(
    ("given", "to"), [(F32, BF16), (F32, F16), (F16, BF16), (BF16, F16), (BF16, F32), (F16, F32)], ids=str
)
@pytest.mark.parametrize("count", [1, 7, 64, 5000])
def test_a_cast_has_the_values_of_to(given, to, count):
    special = torch.tensor(
        [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-40, 6e-8, 65504, 65520, 3.3895e38, 1 + 2**-8, 1 + 3 * 2**-9]
    )
    values = torch.cat([special, torch.randn(count) * 10.0 ** torch.randint(-30, 30, (count,))]).to(given)
    policy(**({"fp32": ["abs"]} if to == F32 else {"lower": ["abs"], "low_dtype": to}))
    (reached,), _ = arrived(lambda: torch.abs(values))
    with hmp.disable_casts():
        expected = values.to(to)
        assert torch.equal(reached.isnan(), expected.isnan())
        bits = [torch.int32 if to == F32 else torch.int16]
        assert torch.equal(reached[~reached.isnan()].view(*bits), expected[~expected.isnan()].view(*bits))
