"""``hmp.find_nonfinite`` in a backward pass in float16. If the scale of the loss overflows, or a cast does, the op is not to blame."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp

LISTS = hmp.Policy.load("torch-cuda")
X = torch.linspace(-2, 2, 32).reshape(4, 8)


def weight() -> nn.Parameter:
    return nn.Parameter(torch.eye(8) * 2)


def half(make):
    """What is made under the policy in float16."""
    with hmp.autocast("cpu", torch.float16, policy=LISTS):
        return make()


def by_scaler(loss: torch.Tensor, scale: float) -> torch.Tensor:
    return hmp.GradScaler("cpu", init_scale=scale).scale(loss)


def by_hand(loss: torch.Tensor, scale: float) -> torch.Tensor:
    return scale * loss


def cast_of_the_code(w):
    return (half(lambda: X @ w).float() ** 2).sum()


def cast_of_the_list(w):
    return half(lambda: F.mse_loss(X @ w, torch.zeros(4, 8)))


def op_of_the_list(w):
    return half(lambda: (X @ w) @ w).float().mean()


# The loss, the scale that is too large for it, the op whose backward pass overflows, and what is inside of it.
SCALED = {
    "cast of the code": (cast_of_the_code, 2.0**16, "to", "aten::_to_copy"),
    "cast of the list": (cast_of_the_list, 2.0**22, "mse_loss", "cast"),
    "op of the list": (op_of_the_list, 2.0**20, "matmul", "aten::mm"),
}


@pytest.mark.parametrize("case", SCALED)
@pytest.mark.parametrize("scaled", [by_scaler, by_hand])
def test_a_scale_that_overflows(case, scaled) -> None:
    make, scale, op, inner = SCALED[case]
    found = hmp.find_nonfinite(lambda: scaled(make(weight()), scale).backward())
    assert found is not None
    assert (found.op, found.phase, found.inner) == (op, "backward", inner)
    assert (found.scale, found.lower_scale, found.edit) == (scale, True, None)
    assert 65504 < found.largest < 65504 * scale
    assert f"the loss is multiplied by {scale:,.0f}: without it" in str(found)
    assert "none: lower the scale (a GradScaler does so by itself" in str(found)
    assert "not finite in float32" not in str(found)
    assert hmp.find_nonfinite(lambda: scaled(make(weight()), 256.0).backward()) is None


def test_the_scale_of_a_conversion() -> None:
    hmp.convert(policy=LISTS, low_precision_type=torch.float16)
    w = weight()
    found = hmp.find_nonfinite(lambda: by_scaler(F.mse_loss(X @ w, torch.zeros(4, 8)), 2.0**22).backward())
    assert found is not None
    assert (found.op, found.lower_scale, found.edit) == ("mse_loss", True, None)
    assert found.rule.startswith("fp32: mse_loss")


def test_an_op_that_overflows_without_the_scale_has_an_edit() -> None:
    x, w = torch.full((4, 8), 0.01, requires_grad=True), torch.full((8, 8), 3e4)

    def step(policy):
        with hmp.autocast("cpu", torch.float16, policy=policy):
            y = F.linear(x, w)
        y.float().sum().mul(2.0).backward()

    found = hmp.find_nonfinite(lambda: step(LISTS))
    assert found is not None
    assert (found.op, found.phase, found.scale, found.lower_scale) == ("linear", "backward", 2, False)
    assert (found.edit, found.no_edit) == ("+linear:fp32", "")
    assert hmp.find_nonfinite(lambda: step(LISTS.with_edits(found.edit))) is None


# A loss whose scale is not to be seen, or that has none: the edit, and what is printed.
UNSEEN = {
    "op": (op_of_the_list, 2.0**20, "+matmul:fp32", "if the loss is scaled, lower the scale first"),
    "cast": (cast_of_the_code, 2.0**16, None, "the gradient is cast to float16, the dtype of what to was given"),
}


@pytest.mark.parametrize("case", UNSEEN)
def test_a_scale_that_is_not_seen(case) -> None:
    make, scale, edit, text = UNSEEN[case]
    found = hmp.find_nonfinite(lambda: make(weight()).backward(torch.tensor(scale)))
    assert found is not None
    assert (found.scale, found.lower_scale, found.edit) == (1, False, edit)
    assert text in str(found)
    assert "not finite in float32" not in str(found)


# What makes a number in the forward pass, and why there is no edit.
NO_EDIT = {
    "cast of the code": (lambda: torch.full((3,), 1e6).half(), "it is a cast of the code to float16"),
    "not run again": (
        lambda: torch.ops.aten.normal_functional(torch.zeros(99, dtype=torch.float16), 0.0, 1e6),
        "whether it is finite in float32 is not known",
    ),
    "float64": (lambda: torch.exp(torch.full((3,), 1e4, dtype=torch.float64)), "it is not finite in float32 either"),
}


@pytest.mark.parametrize("case", NO_EDIT)
def test_why_there_is_no_edit(case) -> None:
    make, why = NO_EDIT[case]
    found = hmp.find_nonfinite(make)
    assert found is not None
    assert (found.phase, found.edit, found.scale) == ("forward", None, 1)
    assert found.no_edit.startswith(why)
    assert f"none: {why}" in str(found)
