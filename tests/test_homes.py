"""A name covers every home of its op (D16), C++ names reach their Python calls (D17), and patched ops look and bind as torch's own."""

# ruff: noqa: PLW0108 - a lambda looks the op up when it is called; the op itself would be torch's own, from before any conversion

from __future__ import annotations

import copy
import functools
import inspect
import operator
import re
import weakref
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import _core, _homes, hmp

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16

MATRIX = torch.tensor([[1.5, 2.0], [3.0, 4.25]])
OTHER = torch.tensor([[2.0, 1.0], [1.0, 3.0]])


def a():
    return MATRIX.clone()


def b():
    return OTHER.clone()


def image(channels=2):
    return torch.linspace(0, 1, channels * 16).reshape(1, channels, 4, 4)


def signal():
    return torch.linspace(0, 1, 8)


def volume():
    return torch.linspace(0, 1, 64).reshape(1, 1, 4, 4, 4)


def lower(*names):
    return hmp.convert(policy=hmp.Policy.from_ops(lower=names))


def fp32(*names):
    return hmp.convert(policy=hmp.Policy.from_ops(fp32=names))


def dtype_of(result):
    while isinstance(result, (tuple, list)):
        result = result[0]
    return result.dtype


# listed name: every home of the op, called with float32.
HOMES = {
    "mm": {
        "torch": lambda: torch.mm(a(), b()),
        "Tensor": lambda: a().mm(b()),
        "unbound": lambda: torch.Tensor.mm(a(), b()),
        "_VF": lambda: torch._VF.mm(a(), b()),
    },
    "matmul": {
        "torch": lambda: torch.matmul(a(), b()),
        "Tensor": lambda: a().matmul(b()),
        "@": lambda: a() @ b(),
        "operator": lambda: operator.matmul(a(), b()),
        "__matmul__": lambda: a().__matmul__(b()),
        "__rmatmul__": lambda: a().__rmatmul__(b()),
        "linalg": lambda: torch.linalg.matmul(a(), b()),
        "_VF": lambda: torch._VF.matmul(a(), b()),
    },
    "linear": {
        "F": lambda: F.linear(a(), b()),
        "_C._nn": lambda: torch._C._nn.linear(a(), b()),
        "module": lambda: nn.Linear(2, 2)(a()),
    },
    "conv2d": {
        "torch": lambda: torch.conv2d(image(), torch.ones(1, 2, 2, 2)),
        "F": lambda: F.conv2d(image(), torch.ones(1, 2, 2, 2)),
        "_VF": lambda: torch._VF.conv2d(image(), torch.ones(1, 2, 2, 2)),
        "module": lambda: nn.Conv2d(2, 1, 2)(image()),
        "module, padded": lambda: nn.Conv2d(2, 1, 2, padding=1, padding_mode="reflect")(image()),
    },
    "softmax": {
        "torch": lambda: torch.softmax(a(), 0),
        "Tensor": lambda: a().softmax(0),
        "F": lambda: F.softmax(a(), 0),
        "special": lambda: torch.special.softmax(a(), 0),
        "_VF": lambda: torch._VF.softmax(a(), 0),
        "module": lambda: nn.Softmax(0)(a()),
    },
    "add": {
        "torch": lambda: torch.add(a(), b()),
        "Tensor": lambda: a().add(b()),
        "+": lambda: a() + b(),
        "+ scalar": lambda: a() + 1,
        "scalar +": lambda: 1 + a(),
        "__radd__": lambda: a().__radd__(b()),
        "sum()": lambda: sum([a(), b()]),
    },
    "sub": {
        "torch": lambda: torch.sub(a(), b()),
        "subtract": lambda: torch.subtract(a(), b()),
        "Tensor.subtract": lambda: a().subtract(b()),
        "-": lambda: a() - b(),
        "scalar -": lambda: 1 - a(),
        "__rsub__": lambda: a().__rsub__(b()),
        "rsub": lambda: torch.rsub(a(), b()),
    },
    "mul": {
        "torch": lambda: torch.mul(a(), b()),
        "multiply": lambda: torch.multiply(a(), b()),
        "Tensor": lambda: a().mul(b()),
        "Tensor.multiply": lambda: a().multiply(b()),
        "*": lambda: a() * b(),
        "scalar *": lambda: 2 * a(),
        "__rmul__": lambda: a().__rmul__(b()),
    },
    "div": {
        "torch": lambda: torch.div(a(), b()),
        "divide": lambda: torch.divide(a(), b()),
        "true_divide": lambda: torch.true_divide(a(), b()),
        "Tensor": lambda: a().div(b()),
        "Tensor.divide": lambda: a().divide(b()),
        "Tensor.true_divide": lambda: a().true_divide(b()),
        "/": lambda: a() / b(),
        "1 /": lambda: 1 / a(),
        "1.0 /": lambda: 1.0 / a(),
        "__rtruediv__": lambda: a().__rtruediv__(b()),
        "__rdiv__": lambda: a().__rdiv__(b()),
        "__div__": lambda: a().__div__(b()),
    },
    "pow": {
        "torch": lambda: torch.pow(a(), 2),
        "torch, scalar first": lambda: torch.pow(2, a()),
        "Tensor": lambda: a().pow(2),
        "**": lambda: a() ** 2,
        "scalar **": lambda: 2 ** a(),
    },
    "cat": {
        "torch": lambda: torch.cat([a(), b()]),
        "concat": lambda: torch.concat([a(), b()]),
        "concatenate": lambda: torch.concatenate((a(), b())),
        "_VF": lambda: torch._VF.cat([a(), b()]),
    },
    "einsum": {
        "torch": lambda: torch.einsum("ij,jk->ik", a(), b()),
        "torch.functional": lambda: torch.functional.einsum("ij,jk->ik", a(), b()),
        "_VF": lambda: torch._VF.einsum("ij,jk->ik", (a(), b())),
    },
    "norm": {
        "torch": lambda: torch.norm(a()),
        "torch.functional": lambda: torch.functional.norm(a()),
        "Tensor": lambda: a().norm(),
        "linalg": lambda: torch.linalg.norm(a()),
    },
    "relu": {
        "torch": lambda: torch.relu(a()),
        "Tensor": lambda: a().relu(),
        "F": lambda: F.relu(a()),
        "module": lambda: nn.ReLU()(a()),
    },
    "sigmoid": {
        "torch": lambda: torch.sigmoid(a()),
        "Tensor": lambda: a().sigmoid(),
        "F": lambda: F.sigmoid(a()),
        "special.expit": lambda: torch.special.expit(a()),
    },
    "vecdot": {"linalg": lambda: torch.linalg.vecdot(a(), b())},
    "multi_dot": {"linalg": lambda: torch.linalg.multi_dot([a(), b()])},
    "layer_norm": {
        "torch": lambda: torch.layer_norm(a(), (2,)),
        "F": lambda: F.layer_norm(a(), (2,)),
        "module": lambda: nn.LayerNorm(2)(a()),
    },
    "lstm": {
        "torch": lambda: torch.lstm(signal().reshape(1, 4, 2), hidden(), nn.LSTM(2, 2)._flat_weights, True, 1, 0.0, False, False, False),
        "module": lambda: nn.LSTM(2, 2)(signal().reshape(1, 4, 2)),
    },
    "gru": {"module": lambda: nn.GRU(2, 2)(signal().reshape(1, 4, 2))},
    "rnn_tanh": {"module": lambda: nn.RNN(2, 2)(signal().reshape(1, 4, 2))},
    "rnn_relu": {"module": lambda: nn.RNN(2, 2, nonlinearity="relu")(signal().reshape(1, 4, 2))},
    "LSTMCell": {"torch": lambda: torch.lstm_cell(a(), (a(), a()), *cell_weights(4)), "module": lambda: nn.LSTMCell(2, 2)(a())},
    "GRUCell": {"torch": lambda: torch.gru_cell(a(), a(), *cell_weights(3)), "module": lambda: nn.GRUCell(2, 2)(a())},
    "RNNCell": {
        "torch": lambda: torch.rnn_tanh_cell(a(), a(), *cell_weights(1)),
        "module": lambda: nn.RNNCell(2, 2)(a()),
        "module, relu": lambda: nn.RNNCell(2, 2, nonlinearity="relu")(a()),
    },
}  # fmt: skip


def hidden():
    return torch.zeros(1, 4, 2), torch.zeros(1, 4, 2)


def cell_weights(gates):
    return torch.ones(2 * gates, 2), torch.ones(2 * gates, 2)


def cases(table):
    return [
        pytest.param(name, call, id=f"{name}: {home}") for name, homes in table.items() for home, call in homes.items()
    ]


@pytest.mark.parametrize(("name", "call"), cases(HOMES))
def test_every_home_follows_the_name(name, call):
    """D16, F93, F134."""
    assert dtype_of(call()) == F32
    lower(name)
    assert dtype_of(call()) == BF16
    hmp.revert()
    assert dtype_of(call()) == F32


IN_PLACE_HOMES = {
    "add": {"+=": operator.iadd, "Tensor.add_": lambda x, y: x.add_(y), "__iadd__": lambda x, y: x.__iadd__(y)},
    "iadd": {"+=": operator.iadd},
    "mul": {"*=": operator.imul, "mul_": lambda x, y: x.mul_(y), "multiply_": lambda x, y: x.multiply_(y)},
    "div": {"/=": operator.itruediv, "div_": lambda x, y: x.div_(y), "divide_": lambda x, y: x.divide_(y)},
    "sub": {"-=": operator.isub, "sub_": lambda x, y: x.sub_(y)},
    "pow": {"**=": operator.ipow, "pow_": lambda x, y: x.pow_(y)},
}


@pytest.mark.parametrize(("name", "call"), cases(IN_PLACE_HOMES))
def test_every_in_place_home_is_logged_for_the_name(name, call, capsys, tmp_path):
    """D16, F75, F110: one line, to the dtype of the target."""
    path = tmp_path / "lower.txt"
    path.write_text(name)
    empty = tmp_path / "fp32.txt"
    empty.write_text("")
    hmp.convert(bf16_file_path=path, fp32_file_path=empty, isVerbose=True)
    capsys.readouterr()
    target = a().bfloat16()
    result = call(target, b())
    lines = capsys.readouterr().out.splitlines()
    assert result is target
    assert target.dtype == BF16
    assert len(lines) == 1
    assert lines[0].endswith("  to  to_bf16")


ALIASES = [
    pytest.param({"lower": ["mul"], "fp32": ["multiply"]}, lambda: torch.multiply(a(), b()), F32, id="multiply itself"),
    pytest.param({"lower": ["mul"], "fp32": ["multiply"]}, lambda: torch.mul(a(), b()), BF16, id="mul itself"),
    pytest.param({"lower": ["mul"], "fp32": ["multiply"]}, lambda: a() * b(), BF16, id="* is __mul__"),
    pytest.param({"lower": ["div"], "fp32": ["truediv"]}, lambda: a() / b(), F32, id="/ is truediv"),
    pytest.param({"lower": ["div"], "fp32": ["truediv"]}, lambda: torch.div(a(), b()), BF16, id="div itself"),
    pytest.param({"lower": ["div"], "fp32": ["truediv"]}, lambda: 1 / a(), F32, id="1 / is truediv's reflection"),
    pytest.param({"lower": ["truediv"]}, lambda: torch.div(a(), b()), BF16, id="truediv alone reaches div"),
    pytest.param({"lower": ["true_divide"]}, lambda: a() / b(), BF16, id="true_divide alone reaches /"),
    pytest.param({"lower": ["__rtruediv__"]}, lambda: 1 / a(), BF16, id="__rtruediv__ alone reaches 1 /"),
    pytest.param({"lower": ["__rtruediv__"]}, lambda: a() / 2, F32, id="and not /"),
    pytest.param({"lower": ["__rdiv__"]}, lambda: 1 / a(), BF16, id="__rdiv__ is the same function (F131)"),
    pytest.param({"lower": ["reciprocal"]}, lambda: a().reciprocal(), BF16, id="reciprocal itself"),
    pytest.param({"lower": ["sub"]}, lambda: 1 - a(), BF16, id="1 - is sub's"),
    pytest.param({"lower": ["sub"], "fp32": ["rsub"]}, lambda: 1 - a(), F32, id="rsub's where it is named"),
    pytest.param({"lower": ["rsub"]}, lambda: 1 - a(), BF16, id="rsub alone reaches 1 -"),
    pytest.param({"lower": ["rsub"]}, lambda: a() - 1, F32, id="and not -"),
    pytest.param({"lower": ["cat"], "fp32": ["concat"]}, lambda: torch.concat([a(), b()]), F32, id="concat itself"),
    pytest.param({"lower": ["concat"]}, lambda: torch.cat([a(), b()]), BF16, id="concat alone reaches cat"),
    pytest.param({"lower": ["concatenate"]}, lambda: torch.concat([a(), b()]), BF16, id="concatenate alone reaches concat"),
    pytest.param({"lower": ["vstack"]}, lambda: torch.row_stack([a(), b()]), BF16, id="row_stack is vstack"),
    pytest.param({"lower": ["__matmul__"]}, lambda: a() @ b(), BF16, id="__matmul__ names @"),
    pytest.param({"lower": ["__matmul__"]}, lambda: torch.matmul(a(), b()), BF16, id="__matmul__ alone reaches matmul"),
    pytest.param({"lower": ["matmul"], "fp32": ["__matmul__"]}, lambda: a() @ b(), F32, id="@ by its own name first"),
    pytest.param({"lower": ["__pow__"]}, lambda: a() ** 2, BF16, id="__pow__ names **"),
    pytest.param({"lower": ["__rpow__"]}, lambda: 2 ** a(), BF16, id="__rpow__ names scalar **"),
    pytest.param({"lower": ["pow.Tensor_Scalar"]}, lambda: torch.pow(a(), 2), BF16, id="an overload is the whole op (D17)"),
    pytest.param({"lower": ["linalg_matmul"]}, lambda: torch.linalg.matmul(a(), b()), BF16, id="linalg_matmul"),
    pytest.param({"lower": ["linalg_matmul"]}, lambda: torch.matmul(a(), b()), BF16, id="linalg_matmul reaches matmul"),
    pytest.param({"lower": ["linalg_matmul"]}, lambda: a() @ b(), BF16, id="linalg_matmul reaches @"),
    pytest.param({"lower": ["linalg_matmul"], "fp32": ["matmul"]}, lambda: torch.matmul(a(), b()), F32, id="matmul itself"),
    pytest.param({"lower": ["linalg_norm"]}, lambda: torch.norm(a()), F32, id="linalg.norm is no alias of norm"),
    pytest.param({"lower": ["linalg_cross"]}, lambda: torch.cross(*torch.ones(2, 3, 3), dim=1), F32, id="nor linalg.cross of cross (F271)"),
    pytest.param({"lower": ["absolute"]}, lambda: a().abs(), BF16, id="absolute reaches abs"),
    pytest.param({"lower": ["abs"]}, lambda: abs(a()), BF16, id="abs reaches abs()"),
    pytest.param({"lower": ["neg"]}, lambda: -a(), BF16, id="neg reaches -x"),
    pytest.param({"lower": ["clip"]}, lambda: a().clamp(0, 1), BF16, id="clip reaches clamp"),
    pytest.param({"lower": ["special_softmax"]}, lambda: torch.special.softmax(a(), 0), BF16, id="special_softmax"),
    pytest.param({"lower": ["special_softmax"]}, lambda: torch.softmax(a(), 0), BF16, id="special_softmax reaches softmax"),
    pytest.param({"lower": ["arccos"]}, lambda: (a() / 9).acos(), BF16, id="arccos reaches acos"),
    pytest.param({"lower": ["remainder"]}, lambda: a() % 2, BF16, id="% is remainder"),
    pytest.param({"lower": ["floor_divide"]}, lambda: a() // 2, BF16, id="// is floor_divide"),
]  # fmt: skip


@pytest.mark.parametrize(("lists", "call", "expected"), ALIASES)
def test_aliases_share_a_rule_unless_one_is_named(lists, call, expected):
    """D16."""
    hmp.convert(policy=hmp.Policy.from_ops(**lists))
    assert call().dtype == expected


# Names of torch.linalg and torch.special, and the op of torch that its documentation calls the same.
MODULE_ALIASES = {
    "linalg": {
        "det": "det", "slogdet": "slogdet", "matmul": "matmul", "matrix_exp": "matrix_exp", "matrix_power": "matrix_power",
        "inv": "inverse", "pinv": "pinverse", "householder_product": "orgqr",
    },
    "special": {
        "digamma": "digamma", "psi": "digamma", "erf": "erf", "erfc": "erfc", "erfinv": "erfinv", "exp2": "exp2",
        "expit": "sigmoid", "expm1": "expm1", "gammainc": "igamma", "gammaincc": "igammac", "gammaln": "lgamma", "i0": "i0",
        "log1p": "log1p", "log_softmax": "log_softmax", "logit": "logit", "logsumexp": "logsumexp", "multigammaln": "mvlgamma",
        "polygamma": "polygamma", "round": "round", "sinc": "sinc", "softmax": "softmax", "xlogy": "xlogy",
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("module", "name", "plain"),
    [(module, name, plain) for module, names in MODULE_ALIASES.items() for name, plain in names.items()],
)
def test_names_of_modules_and_torchs_own_share_a_rule_both_ways(module, name, plain):
    """D16."""

    def rules():
        return [getattr(torch, plain).rule, getattr(getattr(torch, module), name).rule]

    for listed in (plain, name, f"{module}_{name}"):
        fp32(listed)
        assert all(rule is not None and rule.listed for rule in rules()), listed
        hmp.revert()


def test_every_alias_that_torch_documents_is_known():
    """D16: a table that shows new aliases of another torch version."""
    documented = {name: text for name in dir(torch) if isinstance(text := getattr(torch, name).__doc__, str)}
    pattern = re.compile(r"Alias for :func:`torch\.(linalg|special)\.(\w+)`")
    told = {(found[1], found[2], name) for name, text in documented.items() if (found := pattern.search(text))}
    assert len(told) > 20
    assert told <= {(module, name, plain) for module, names in MODULE_ALIASES.items() for name, plain in names.items()}


def nll(*shape):
    return F.nll_loss(-torch.rand(2, 3, *shape).bfloat16(), torch.zeros(2, *shape, dtype=torch.int64))


# name known only in C++: the Python calls that reach it, with float16 inputs; what is float32 was cast.
REACHED = {
    "cross_entropy_loss": {
        "F.cross_entropy": lambda: F.cross_entropy(a().bfloat16(), torch.tensor([0, 1])),
        "nn": lambda: nn.CrossEntropyLoss()(a().bfloat16(), torch.tensor([0, 1])),
    },
    "nll_loss_nd": {"F.nll_loss": nll},
    "nll_loss2d": {"F.nll_loss of images": functools.partial(nll, 2, 2)},
    "_convolution": {
        "torch.conv2d": lambda: torch.conv2d(image().bfloat16(), torch.ones(1, 2, 2, 2)),
        "F.conv1d": lambda: F.conv1d(signal().reshape(1, 1, 8).bfloat16(), torch.ones(1, 1, 2)),
        "F.conv_transpose2d": lambda: F.conv_transpose2d(image().bfloat16(), torch.ones(2, 1, 2, 2)),
        "nn.Conv2d, same": lambda: nn.Conv2d(2, 1, 3, padding="same")(image().bfloat16()),
    },
    "convolution": {"F.conv3d": lambda: F.conv3d(volume().bfloat16(), torch.ones(1, 1, 2, 2, 2))},
    "mkldnn_rnn_layer": {"nn.LSTM": lambda: nn.LSTM(2, 2)(signal().reshape(1, 4, 2).bfloat16())},
    "_thnn_fused_gru_cell": {"nn.GRUCell": lambda: nn.GRUCell(2, 2)(a().bfloat16())},
    "_thnn_fused_lstm_cell": {"nn.LSTMCell": lambda: nn.LSTMCell(2, 2)(a().bfloat16())},
    "multilabel_margin_loss_forward": {
        "F.multilabel_margin_loss": lambda: F.multilabel_margin_loss(a().bfloat16(), torch.tensor([[0, 1], [1, 0]])),
    },
    "grid_sampler": {"F.grid_sample": lambda: sampled(image().bfloat16())},
    "grid_sampler_2d": {"F.grid_sample": lambda: sampled(image().bfloat16())},
    "grid_sampler_3d": {"F.grid_sample": lambda: F.grid_sample(volume().bfloat16(), torch.zeros(1, 2, 2, 2, 3).bfloat16(), align_corners=False)},
    "feature_dropout": {
        "F.dropout1d": lambda: F.dropout1d(torch.ones(2, 3, 4).bfloat16()),
        "F.dropout2d": lambda: F.dropout2d(image().bfloat16()),
        "F.dropout3d": lambda: F.dropout3d(volume().bfloat16()),
    },
    "native_layer_norm": {"F.layer_norm": lambda: F.layer_norm(a().bfloat16(), (2,))},
    "linalg_multi_dot": {"torch.linalg.multi_dot": lambda: torch.linalg.multi_dot([a().bfloat16(), b().bfloat16()])},
    "linalg_inv": {"torch.linalg.inv": lambda: torch.linalg.inv(a().bfloat16()), "torch.inverse": lambda: torch.inverse(a().bfloat16())},
    "reflection_pad1d": {
        "F.pad": lambda: F.pad(signal().reshape(1, 8).bfloat16(), (1, 1), mode="reflect"),
        "nn": lambda: nn.ReflectionPad1d(1)(signal().reshape(1, 8).bfloat16()),
    },
    "reflection_pad2d": {"F.pad": lambda: F.pad(image().bfloat16(), (1, 1, 1, 1), mode="reflect")},
    "replication_pad1d": {"F.pad": lambda: F.pad(signal().reshape(1, 8).bfloat16(), (1, 1), mode="replicate")},
    "replication_pad2d": {"F.pad": lambda: F.pad(image().bfloat16(), (1, 1, 1, 1), "replicate")},
    "replication_pad3d": {"F.pad": lambda: F.pad(volume().bfloat16(), (1,) * 6, mode="replicate")},
    "upsample_bilinear2d": {"F.interpolate": lambda: F.interpolate(image().bfloat16(), scale_factor=2, mode="bilinear")},
    "upsample_nearest2d": {"nn.Upsample": lambda: nn.Upsample(scale_factor=2)(image().bfloat16())},
    "_upsample_nearest_exact2d": {"F.interpolate": lambda: F.interpolate(image().bfloat16(), scale_factor=2, mode="nearest-exact")},
    "linalg_vector_norm": {"torch.norm": lambda: torch.norm(a().bfloat16()), "Tensor.norm": lambda: a().bfloat16().norm()},
    "multilabel_margin_loss": {"nn": lambda: nn.MultiLabelMarginLoss()(a().bfloat16(), torch.tensor([[0, 1], [1, 0]]))},
}  # fmt: skip


def sampled(x):
    return F.grid_sample(x, torch.zeros(1, 2, 2, 2).bfloat16(), align_corners=False)


@pytest.mark.parametrize(("name", "call"), cases(REACHED))
def test_names_of_cpp_reach_their_python_calls(name, call):
    """D17, F128, F133."""
    fp32(name)
    assert dtype_of(call()) == F32


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("reflection_pad2d", lambda: F.pad(image().bfloat16(), (1, 1, 1, 1), mode="replicate")),
        ("reflection_pad2d", lambda: F.pad(image().bfloat16(), (1, 1, 1, 1))),
        ("reflection_pad2d", lambda: F.pad(signal().reshape(1, 8).bfloat16(), (1, 1), mode="reflect")),
    ],
    ids=["another mode", "constant", "another rank"],
)
def test_padding_of_another_kind_is_left_alone(name, call):
    """D17: F.pad is many ops of C++."""
    fp32(name)
    assert call().dtype == BF16


def test_pad_itself_covers_every_mode():
    fp32("pad")
    assert F.pad(image().bfloat16(), (1, 1, 1, 1), mode="reflect").dtype == F32
    assert F.pad(image().bfloat16(), (1, 1)).dtype == F32


def test_homes_that_are_one_object_stay_one():
    """D16."""
    groups = {}
    for home in _homes.homes():
        groups.setdefault(id(getattr(home.owner, home.attribute)), []).append(home)
    hmp.convert(policy="hmp-o2")
    now = {id(getattr(home.owner, home.attribute)): group for group in groups.values() for home in group}
    assert len(now) == len(groups)
    assert torch.conv2d is F.conv2d
    assert F.linear is torch._C._nn.linear
    assert torch.einsum is torch.functional.einsum
    for group in groups.values():
        assert len({id(getattr(home.owner, home.attribute)) for home in group}) == 1, group


# ---- how a patched op looks


LOOKED_AT = {
    "builtin function": lambda: torch.mm,
    "builtin of a module": lambda: F.linear,
    "Python function": lambda: F.relu,
    "Python function of torch": lambda: torch.einsum,
    "method": lambda: torch.Tensor.mm,
    "operator": lambda: torch.Tensor.__add__,
    "Python operator": lambda: torch.Tensor.__rsub__,
}


@pytest.fixture(params=LOOKED_AT.values(), ids=LOOKED_AT.keys())
def get(request):
    return request.param


@pytest.mark.parametrize("attribute", ["__name__", "__doc__"])
def test_attributes_are_those_of_the_original(get, attribute):
    expected = getattr(get(), attribute)
    hmp.convert(policy="hmp-o2")
    assert getattr(get(), attribute) == expected


def test_module_is_that_of_the_original(get):
    expected = getattr(get(), "__module__", "torch")  # methods have none
    hmp.convert(policy="hmp-o2")
    assert get().__module__ == expected


def test_signature_is_that_of_the_original(get):
    def signature():
        try:
            return inspect.signature(get())
        except ValueError as error:  # builtins tell none
            return str(error)

    expected = signature()
    hmp.convert(policy="hmp-o2")
    assert signature() == expected


def test_repr_shows_the_original(get):
    expected = repr(get())
    hmp.convert(policy="hmp-o2")
    assert repr(get()) == f"<habana_mp patched op around {expected}>"


def test_it_is_a_value_that_can_be_kept(get):
    hmp.convert(policy="hmp-o2")
    op = get()
    assert op is get()
    assert callable(op)
    assert {op: 1}[op] == 1
    assert weakref.ref(op)() is op
    assert copy.copy(op) is op
    assert copy.deepcopy(op) is op
    op.note = "kept"
    assert op.note == "kept"
    del op.note


def test_unwrap_gives_the_original(get):
    original = get()
    hmp.convert(policy="hmp-o2")
    assert inspect.unwrap(get()) is inspect.unwrap(original)
    assert get().__wrapped__ is original


class Holder:
    """Ops stored on a class: a builtin is a plain attribute, methods and Python functions bind."""

    ops: ClassVar = {
        "builtin": lambda: torch.abs,
        "builtin of torch._C._nn": lambda: F.gelu,
        "method": lambda: torch.Tensor.abs,
        "Python function": lambda: F.softsign,
        "operator": lambda: torch.Tensor.__abs__,
    }


@pytest.mark.parametrize("get_op", Holder.ops.values(), ids=Holder.ops.keys())
def test_binding_is_that_of_the_original(get_op):
    """D16."""

    def bound():
        holder = type("holder", (torch.Tensor,), {"stored": get_op()})
        instance = torch.ones(2).as_subclass(holder)
        return [
            outcome(lambda: instance.stored()),
            outcome(lambda: instance.stored(torch.ones(2))),
            outcome(lambda: holder.stored(instance)),
        ]

    def outcome(call):
        try:
            return type(call()).__name__
        except TypeError:
            return "TypeError"

    expected = bound()
    assert "TypeError" in expected
    hmp.convert(policy="hmp-o2")
    assert bound() == expected


def test_bound_methods_are_cast():
    hmp.convert()
    x = a()
    method = x.mm
    assert method.__self__ is x
    assert method.__name__ == "mm"
    assert method(b()).dtype == BF16
    assert list(map(x.mm, [b()]))[0].dtype == BF16  # noqa: RUF015
    assert torch.Tensor.mm.__get__(x)(b()).dtype == BF16


def test_operators_answer_strangers_as_torch_does():
    """NotImplemented reaches Python, which asks the other operand."""

    class Stranger:
        def __radd__(self, other):
            return "radd"

        def __rmatmul__(self, other):
            return "rmatmul"

    hmp.convert()
    assert a() + Stranger() == "radd"
    assert a() @ Stranger() == "rmatmul"
    with pytest.raises(TypeError, match="unsupported operand"):
        a() @ "text"


def test_errors_of_the_original_come_through():
    hmp.convert()
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        torch.mm(a(), torch.ones(3, 3))
    with pytest.raises(TypeError, match=r"mm\(\): argument 'mat2'"):
        torch.mm(a(), 3)
    with pytest.raises(TypeError):
        torch.mm()


class Stand:
    """No tensor, but torch's functions ask it what to do: proxies of torch.fx, containers of tensors."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return func


STAND_INS = {
    "torch.mm": lambda s: torch.mm(s, a()),
    "torch.stack": lambda s: torch.stack([a(), s]),
    "torch.einsum": lambda s: torch.einsum("ij,jk->ik", a(), s),
    "torch.norm": lambda s: torch.norm(s),
    "torch.special.softmax": lambda s: torch.special.softmax(s, 0),
    "torch.linalg.inv": lambda s: torch.linalg.inv(s),
    "F.linear": lambda s: F.linear(a(), weight=s),
    "F.relu": lambda s: F.relu(s),
    "F.layer_norm": lambda s: F.layer_norm(s, (2,)),
    "F.max_pool2d": lambda s: F.max_pool2d(s, 2),
    "F.gelu": lambda s: F.gelu(s),
    "Tensor.mm": lambda s: a().mm(s),
    "Tensor.add_": lambda s: a().add_(s),
}


@pytest.mark.parametrize("call", STAND_INS.values(), ids=STAND_INS.keys())
def test_what_stands_in_for_a_tensor_is_told_what_equals_the_original(call):
    """Its __torch_function__ looks functions up in tables that know torch's own."""
    expected = call(Stand())
    hmp.convert(policy="hmp-o2")
    assert call(Stand()) == expected


# ---- what the rest is, against torch's own schemas


def schemas():
    for schema in torch._C._jit_get_all_schemas():
        namespace, _, name = schema.name.partition("::")
        if namespace == "aten":
            yield name, schema


def returns_view(schema):
    return any(value.alias_info and not value.alias_info.is_write for value in schema.returns)


def count_tensors(schema):
    count = 0
    for argument in schema.arguments:
        text = str(argument.type)
        if not argument.is_out and "Tensor" in text:
            count += 2 if "List" in text else 1
    return count


def homes_in_rest(least):
    """Names of homes whose ops compute on at least so many tensors."""
    found = {}
    for home in _homes.homes():
        if _homes.computes_on(home, home.function()) >= least:
            found.setdefault(home.name, home.label)
    return found


def test_no_view_is_in_the_rest():
    """D4, D15, F80: a view with a cast in front of it would not alias its source."""
    rest = homes_in_rest(1)
    assert {name: rest[name] for name, schema in schemas() if returns_view(schema) and name in rest} == {}


def test_no_copy_of_a_view_is_in_the_rest():
    """The _copy twins of views, and ops that answer with a number or a bool, keep their meaning."""
    views = {name for name, schema in schemas() if returns_view(schema)}
    rest = homes_in_rest(1)
    assert [name for name in rest if name.removesuffix("_copy") in views and name.endswith("_copy")] == []
    assert not {"is_contiguous", "storage_offset", "stride", "size", "dim", "numel", "item"} & set(rest)


def test_every_name_that_is_left_out_exists():
    names = {home.attribute for home in _homes.homes()}
    known = names | {name.rstrip("_") for name in names}
    assert [name for group in _homes.NOT_COMPUTING.values() for name in sorted(group) if name not in known] == []


def test_no_name_is_left_out_twice():
    listed = [name for group in _homes.NOT_COMPUTING.values() for name in group]
    assert len(listed) == len(set(listed))


# Ops with two tensors that D15 leaves out without being named in _homes.NOT_COMPUTING: quantised kernels, and overloads that only
# TorchScript has. Another torch version may have ops that belong here, or in NOT_COMPUTING.
LEFT_OUT_BY_KIND = {
    "fake_quantize_per_channel_affine",
    "fake_quantize_per_tensor_affine",
    "quantize_per_channel",
    "quantize_per_tensor",
    "quantized_batch_norm",
    "quantized_gru_cell",
    "quantized_lstm_cell",
    "quantized_rnn_relu_cell",
    "quantized_rnn_tanh_cell",
    "sort",
}


def test_every_op_with_two_tensors_is_in_the_rest_or_left_out_by_name():
    """D15: a table that shows new ops of another torch version."""
    rest = homes_in_rest(2)
    reachable = {home.name: home for home in _homes.homes()}
    left_out = frozenset().union(*_homes.NOT_COMPUTING.values())
    unknown = set()
    for name, schema in schemas():
        if name in reachable and count_tensors(schema) >= 2 and name not in rest:
            own = reachable[name].attribute
            base = name[:-1] if name.endswith("_") and not name.endswith("__") else name
            if base not in left_out and own not in left_out and not own.startswith(_homes._LOW_LEVEL):
                unknown.add(name)
    assert unknown == LEFT_OUT_BY_KIND


VIEWS = {
    "t": lambda x: x.t(),
    "view": lambda x: x.view(4),
    "reshape": lambda x: x.reshape(4),
    "transpose": lambda x: torch.transpose(x, 0, 1),
    "select": lambda x: x[0],
    "diagonal": lambda x: torch.diagonal(x),
    "linalg.diagonal": lambda x: torch.linalg.diagonal(x),
    "expand": lambda x: x.expand(3, 2, 2),
    "chunk": lambda x: x.chunk(2)[0],
    "unbind": lambda x: x.unbind()[0],
    "real": lambda x: torch.real(x),
    "detach": lambda x: x.detach(),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "atleast_3d": lambda x: torch.atleast_3d(x),
    "contiguous": lambda x: x.contiguous(),
    "squeeze": lambda x: torch.squeeze(x),
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x, torch.ones(2, 2))[0],
    "meshgrid": lambda x: torch.meshgrid(x.view(4), indexing="ij")[0],
    "split": lambda x: torch.split(x, 1)[0],
    "hsplit": lambda x: torch.hsplit(x, 2)[0],
    "mT": lambda x: x.mT,
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_views_stay_views_under_o2(view):
    """D4."""
    hmp.convert(opt_level="O2")
    x = a().bfloat16()
    result = view(x)
    assert result.dtype == BF16
    assert result.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


QUERIES = {
    "is_contiguous": lambda x: x.is_contiguous(),
    "storage_offset": lambda x: x.storage_offset(),
    "stride": lambda x: x.stride(),
    "data_ptr": lambda x: x.data_ptr(),
    "element_size": lambda x: x.element_size(),
    "type": lambda x: x.type(),
    "is_same_size": lambda x: x.is_same_size(x),
    "result_type": lambda x: torch.result_type(x, torch.ones(2, 2)),
    "can_cast": lambda x: torch.can_cast(x.dtype, F32),
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES.keys())
def test_queries_answer_for_the_tensor_itself_under_o2(query):
    """D4."""
    x = torch.arange(12, dtype=BF16).view(3, 4)[1:, ::2]
    expected = query(x)
    hmp.convert(opt_level="O2")
    assert query(x) == expected


CONVERSIONS = {
    "to dtype": (lambda x: x.to(F32), F32),
    "to other": (lambda x: x.to(torch.ones(1)), F32),
    "type_as": (lambda x: x.type_as(torch.ones(1)), F32),
    "float": (lambda x: x.float(), F32),
    "half": (lambda x: x.half(), F16),
    "clone": (lambda x: x.clone(), BF16),
    "copy_": (lambda x: x.copy_(torch.ones(2, 2)), BF16),
    "zeros_like": (lambda x: torch.zeros_like(x), BF16),
    "new_zeros": (lambda x: x.new_zeros(2), BF16),
    "comparison": (lambda x: x > torch.zeros(2, 2), torch.bool),
    "randn_like": (lambda x: torch.randn_like(x), BF16),
}


@pytest.mark.parametrize(("call", "expected"), CONVERSIONS.values(), ids=CONVERSIONS.keys())
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_conversions_copies_and_constructors_keep_their_meaning(level, call, expected):
    """D4, D15."""
    hmp.convert(opt_level=level)
    assert call(a().bfloat16()).dtype == expected


def test_every_listed_name_of_every_preset_has_a_home():
    """F129: a name that no home answers to would do nothing."""
    answered = {name for home in _homes.homes() for level in _core.candidates(home.name) for name in level}
    answered |= {
        f"{kind}_pad{rank}d" for kind in ("reflection", "replication") for rank in (1, 2, 3)
    }  # F.pad asks for these itself
    listed = {name for preset in hmp.presets() for names in hmp.Policy.load(preset).lists.values() for name in names}
    assert listed - answered == set()
