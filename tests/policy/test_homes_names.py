"""Names that are one op's share a rule (D16), and names of C++ reach their Python calls (D17)."""

# ruff: noqa: PLW0108 - a lambda looks the op up when it is called; the op itself would be torch's own, from before any conversion

from __future__ import annotations

import functools
import re

import pytest
import torch
import torch.nn.functional as F
from home_calls import BF16, F32, a, b, cases, dtype_of, fp32, image, signal, volume
from torch import nn

from habana_mp import hmp

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
    aliases = {(found[1], found[2], name) for name, text in documented.items() if (found := pattern.search(text))}
    assert len(aliases) > 20
    assert aliases <= {
        (module, name, plain) for module, names in MODULE_ALIASES.items() for name, plain in names.items()
    }


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
