"""The rules of a policy, each by what it does to a call: exact dtypes and exact numbers of casts (D13, D15, D18, D19, D31)."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F
from arrived_calls import BF16, F16, F32, F64, count_casts, dtypes_arrived, ids, image, named_cases, policy, x
from torch import nn

from habana_mp import hmp

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
    """D15, D16; where that is float32, the lists decide what they are made of (D41)."""
    hmp.convert(policy=name)
    for layer in (nn.LSTM(2, 3), nn.GRU(2, 3), nn.RNN(2, 3)):
        assert layer(x(BF16, 1, 2, 2))[0].dtype == BF16
    assert nn.RNN(2, 3)(x(F32, 1, 2, 2))[0].dtype == BF16
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
    """F81; but for those that refuse mixed dtypes (D41)."""
    policy(lower=["mm"])
    assert dtypes_arrived(lambda: F.mse_loss(x(BF16), x())) == [BF16, F32]
    assert dtypes_arrived(lambda: x(BF16).index_add_(0, ids(), x())) == [BF16, torch.int64, BF16]
    assert dtypes_arrived(lambda: torch.bmm(x(BF16, 1, 2, 2), x(F32, 1, 2, 2))) == [F32, F32]


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
        "tensordot unlisted, mm inside in C++": ({"lower": ["mm"]}, lambda: torch.tensordot(x(), x(), 1), BF16, 2),
        "outer unlisted, mul inside in C++": ({"lower": ["mul"]}, lambda: torch.outer(x()[0], x()[0]), F32, 0),
        "promote is transparent": ({"promote": ["normalize"], "lower": ["div"]}, lambda: F.normalize(x()), BF16, 2),
    }),
)  # fmt: skip
def test_listed_ops_are_atomic_and_others_transparent(lists, call, dtype, casts):
    """D19, D41, F272."""
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


@pytest.mark.parametrize("edit", ["+softmax:fp32", "+linear:fp32", "+linear:int8", "+linear:weight_int8"])
def test_attention_in_no_list_casts_no_weight_before_its_linears(edit):
    """D15, D19: they take the model's weights, rounded once, as in a region, and their copies stay in the cache."""
    edited = hmp.Policy.load("hmp").with_edits(edit)
    module = nn.MultiheadAttention(64, 4).eval().requires_grad_(False)
    a = torch.randn(3, 2, 64, dtype=BF16)
    with hmp.autocast("cpu", policy=edited):
        expected = module(a, a, a)[0]
    hmp.convert(policy=edited)
    for _ in range(3):
        assert torch.equal(module(a, a, a)[0], expected)
    before = hmp.cache.info()
    module(a, a, a)
    assert (hmp.cache.info().misses, hmp.cache.info().invalidated) == (before.misses, before.invalidated)


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


# ---- float16


def test_float16_as_the_low_dtype():
    """D9."""
    hmp.convert(low_precision_type=F16)
    assert torch.mm(x(), x()).dtype == F16
    assert torch.mm(x(BF16), x(F16)).dtype == F16
    assert torch.softmax(x(F16), 0).dtype == F32
    assert F.mse_loss(x(F16), x()).dtype == F16
    assert (x(F16) + x(BF16)).dtype == F32
