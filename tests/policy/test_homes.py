"""A name covers every home of its op (D16), and every name that a preset lists has one (F129)."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F
from home_calls import BF16, F32, a, b, cases, dtype_of, image, lower, signal
from torch import nn

import habana_mp._core as _core
from habana_mp import hmp
from habana_mp._policy.homes import homes

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


def test_homes_that_are_one_object_stay_one():
    """D16."""
    groups = {}
    for home in homes():
        groups.setdefault(id(getattr(home.owner, home.attribute)), []).append(home)
    hmp.convert(policy="hmp-o2")
    now = {id(getattr(home.owner, home.attribute)): group for group in groups.values() for home in group}
    assert len(now) == len(groups)
    assert torch.conv2d is F.conv2d
    assert F.linear is torch._C._nn.linear
    assert torch.einsum is torch.functional.einsum
    for group in groups.values():
        assert len({id(getattr(home.owner, home.attribute)) for home in group}) == 1, group


def test_every_listed_name_of_every_preset_has_a_home():
    """F129: a name that no home answers to would do nothing."""
    answered = {name for home in homes() for level in _core.candidates(home.name) for name in level}
    answered |= {
        f"{kind}_pad{rank}d" for kind in ("reflection", "replication") for rank in (1, 2, 3)
    }  # F.pad asks for these itself
    lists = [names for preset in hmp.presets() for names in hmp.Policy.load(preset).lists.values()]
    listed = {name.partition("@")[0].partition(".")[0] for names in lists for name in names}
    assert listed - answered == set()
