"""Ops that draw random numbers, on the CPU: run again with the same ones, they are measured like any other op, and the program sees no draw of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from habana_mp import hmp

STEPS = 8
LINEAR = nn.Linear(20, 32)
ATTENTION = nn.MultiheadAttention(32, 4, dropout=0.1, batch_first=True)
BATCHES = [torch.randn(64, 20, generator=torch.Generator().manual_seed(i)) for i in range(STEPS)]
ATTEND = "scaled_dot_product_attention"


def attend(y: Tensor, dropout: float = 0.1) -> Tensor:
    return F.scaled_dot_product_attention(*[y.view(4, 2, 8, 32)] * 3, dropout_p=dropout)


# The op, and the lists that it is in: its error was 0 where these gave it float32 numbers, or the part that ops inside of it make.
OPS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "attention": (ATTEND, attend),
    "attention that drops next to nothing": (ATTEND, lambda y: attend(y, 1e-7)),
    "MultiheadAttention": (ATTEND, lambda y: ATTENTION(*[y.view(4, 16, 32)] * 3, need_weights=False)[0]),
    "dropout": ("dropout", lambda y: F.dropout(y, 0.1)),
    "dropout2d": ("feature_dropout", lambda y: F.dropout2d(y.view(16, 8, 4, 4), 0.1)),
    "native_dropout": ("native_dropout", lambda y: torch.native_dropout(y, 0.1, True)[0]),
    "alpha_dropout": ("alpha_dropout", lambda y: F.alpha_dropout(y, 0.1, training=True)),
    "feature_alpha_dropout": ("feature_alpha_dropout", lambda y: F.feature_alpha_dropout(y.view(64, 8, 4), 0.1, True)),
    "rrelu": ("rrelu", lambda y: F.rrelu(y, training=True)),
}


def loss_of(call: Callable[[Tensor], Tensor], step: int, policy: hmp.Policy | None) -> Tensor:
    torch.manual_seed(step)
    with contextlib.nullcontext() if policy is None else hmp.autocast("cpu", policy=policy):
        y = call(LINEAR(BATCHES[step])).float()
    return y.square().mean() + y.flatten()[:7].sum()


@pytest.mark.parametrize(("op", "call"), OPS.values(), ids=OPS)
def test_the_error_of_an_op_that_draws_is_measured(op: str, call: Callable[[Tensor], Tensor]) -> None:
    policy = hmp.Policy.load("balanced").with_edits("+linear:fp32", f"+{op}:lower")
    exact = [loss_of(call, step, None).item() for step in range(STEPS)]
    seen, left = [], []
    for step in range(STEPS):
        loss = loss_of(call, step, policy)
        loss.backward()
        seen.append(loss.item())
        left.append(torch.get_rng_state())
    with hmp.report(values=True) as report:
        for step in range(STEPS):
            loss = loss_of(call, step, policy)
            loss.backward()
            assert loss.item() == seen[step]
            assert torch.equal(torch.get_rng_state(), left[step])
    off = torch.tensor(seen, dtype=torch.float64) - torch.tensor(exact, dtype=torch.float64)
    measured = off.square().mean().sqrt().item()
    (foretold,) = report.errors().values()
    assert measured > 1e-5
    assert foretold == pytest.approx(measured, rel=0.05)
    assert report.forecast(policy.with_edits(f"+{op}:fp32")) < 0.05 * measured
    assert "not measured" not in str(report)


def test_a_call_that_cannot_draw_the_same_has_no_error() -> None:
    """Where others draw from the generator between, it would have other numbers: an error as large as the result."""
    y = torch.randn(4, 2, 8, 32, requires_grad=True)

    def draws_too(tensor: Tensor) -> Tensor:
        torch.rand(3)
        return tensor

    with hmp.report(values=True) as report, hmp.autocast("cpu", policy="balanced"):
        with torch.autograd.graph.saved_tensors_hooks(draws_too, lambda tensor: tensor):
            found = attend(y)
        F.linear(found.float(), torch.ones(4, 32)).sum().backward()
    with pytest.raises(RuntimeError, match="is not measured: it draws random numbers"):
        report.local_error(ATTEND)
    assert f"without what {ATTEND} may round, which is not measured" in " ".join(str(report).split())
