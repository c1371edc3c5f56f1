"""Reports with values: the change of a loss that is linear in the results of one op is exact, also where results are made of others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp

Results = tuple[torch.Tensor, ...]


def flat(results: object) -> Results:
    if isinstance(results, torch.Tensor):
        return (results,)
    return tuple(each for part in results for each in flat(part))  # type: ignore[attr-defined]


def packed(layer: nn.Module) -> Callable[[torch.Tensor], object]:
    def run(x: torch.Tensor) -> object:
        sequence = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([16, 9, 9, 2]), batch_first=True)
        out, state = layer(sequence)
        return out.data, state

    return run


def attention(mask: torch.Tensor) -> Callable[[torch.Tensor], object]:
    """With a mask that needs gradients, such as position biases, torch takes a kernel that also returns what the softmax makes."""

    def run(x: torch.Tensor) -> object:
        heads = x.view(4, 16, 2, 16).transpose(1, 2).bfloat16()
        return F.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask)

    return run


def lstm(**options) -> nn.LSTM:
    return nn.LSTM(32, 32, batch_first=True, **options)


def first(layer: nn.Module, place: int) -> Callable[[torch.Tensor], object]:
    return lambda x: layer(x)[place]


def of_a_step(layer: nn.Module, *place: int) -> Callable[[torch.Tensor], object]:
    def run(x: torch.Tensor) -> object:
        found = layer(x[:, 0])
        return found[place[0]] if place else found

    return run


def cases() -> dict[str, tuple[str, Callable[[torch.Tensor], object]]]:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.rand(32))
    return {
        "lstm_cell": ("lstm_cell", of_a_step(nn.LSTMCell(32, 32))),
        "lstm_cell, hidden state": ("lstm_cell", of_a_step(nn.LSTMCell(32, 32), 0)),
        "lstm_cell, cell state": ("lstm_cell", of_a_step(nn.LSTMCell(32, 32), 1)),
        "gru_cell": ("gru_cell", of_a_step(nn.GRUCell(32, 32))),
        "lstm": ("lstm", lstm()),
        "lstm, output": ("lstm", first(lstm(), 0)),
        "lstm, states": ("lstm", first(lstm(), 1)),
        "lstm of two layers": ("lstm", lstm(num_layers=2, bidirectional=True)),
        "lstm with projections": ("lstm", lstm(proj_size=8)),
        "lstm that could drop": ("lstm", lstm(num_layers=2, dropout=0.5).eval()),
        "packed lstm": ("lstm", packed(lstm())),
        "gru": ("gru", nn.GRU(32, 32)),
        "packed gru": ("gru", packed(nn.GRU(32, 32))),
        "rnn_tanh": ("rnn_tanh", nn.RNN(32, 32)),
        "attention, a mask with gradients": (
            "scaled_dot_product_attention",
            attention(nn.Parameter(torch.randn(1, 2, 16, 16))),
        ),
        "attention, a mask": ("scaled_dot_product_attention", attention(torch.randn(1, 2, 16, 16))),
        "rms_norm": ("rms_norm", lambda x: F.rms_norm(x, (32,), weight)),
        "var_mean": ("var_mean", lambda x: torch.var_mean(x, -1)),
    }


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("name", cases())
def test_the_change_of_a_linear_loss_is_exact(name) -> None:
    op, run = cases()[name]
    policy, wide = (hmp.Policy.from_ops(**{name: [op]}, rest="fp32") for name in ("lower", "fp32"))
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(4, 16, 32, requires_grad=True)
        with hmp.autocast("cpu", policy=wide):
            exact = flat(run(x))
        weights = [torch.randn_like(each, dtype=torch.float64) for each in exact]

        def loss(results, weights=weights):
            return sum((each.double() * weight).sum() for each, weight in zip(results, weights, strict=True))

        with hmp.report(values=True) as report:
            with hmp.autocast("cpu", policy=policy):
                results = flat(run(x))
            loss(results).backward()
        measured = loss(results).item() - loss(exact).item()
        size = sum((each.double() - wide.double()).norm().item() for each, wide in zip(results, exact, strict=True))
        assert size > 0
        # Gradients and differences are kept in bfloat16.
        assert report.loss_change(op) == pytest.approx(measured, abs=0.05 * size)


def test_a_layer_that_drops_is_measured_op_by_op() -> None:
    layer = nn.LSTM(32, 32, num_layers=2, dropout=0.5)
    with hmp.report(values=True) as report:
        with hmp.autocast("cpu", policy=hmp.Policy.from_ops(lower=["lstm"])):
            out, _ = layer(torch.randn(16, 4, 32))
        out.float().sum().backward()
    assert float(report.local_error("lstm")) > 0
