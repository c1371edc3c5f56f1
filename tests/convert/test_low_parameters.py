"""D45: a parameter or buffer that a cast made low, where nothing could keep it, warns with op, list line and cure."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from habana_mp import hmp

BF16 = torch.bfloat16


def gamma_by_hand(module: nn.Module) -> None:
    module.gamma = nn.Parameter(0.1 * torch.ones(4))


def buffer_by_hand(module: nn.Module) -> None:
    module.register_buffer("table", torch.randn(3, 3) @ torch.randn(3, 3))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            gamma_by_hand,
            r"parameter 'gamma' of Linear is bfloat16, because mul made it .*lower\.txt:\d+.*disable_casts",
        ),
        (
            buffer_by_hand,
            r"buffer 'table' of Linear is bfloat16, because matmul made it .*lower\.txt:\d+.*disable_casts",
        ),
    ],
    ids=["parameter", "buffer"],
)
def test_what_is_made_elsewhere_warns_with_op_and_list_line(make, told: str) -> None:
    module = nn.Linear(2, 2)
    hmp.convert(policy="hmp")
    with pytest.warns(UserWarning, match=told) as warned:
        make(module)
    assert warned[0].filename == __file__
    with hmp.disable_casts():
        make(nn.Linear(2, 2))  # warnings are errors here
    hmp.revert()
    make(nn.Linear(2, 2))


def test_parameters_that_are_low_on_purpose_do_not_warn() -> None:
    hmp.convert(policy="hmp")
    for _ in range(20):  # the memory of the products is used again
        _ = torch.ones(4, 4) @ torch.ones(4, 4)
        module = nn.Linear(4, 4, dtype=BF16)
        module.gamma = nn.Parameter(torch.ones(4, 4, dtype=BF16))
        module.scale = nn.Parameter(torch.ones(4, 4).to(BF16))


def test_a_parameter_of_no_module_warns_where_an_optimizer_gets_it() -> None:
    """It would never move: 1e-4 is less than half a unit of its last place."""
    hmp.convert(policy=hmp.Policy.from_ops(lower=["mul"], name="mine"))
    scale = nn.Parameter(0.1 * torch.ones(4))
    told = r"a parameter of shape \(4,\) of SGD is bfloat16, because mul made it under hmp.convert: lower: mul, mine"
    with pytest.warns(UserWarning, match=told):
        torch.optim.SGD([scale], lr=1e-4)
    torch.optim.SGD([scale], lr=1e-4)  # once


def late(module: nn.Module) -> None:
    parameter = nn.Parameter(torch.eye(4) @ torch.eye(4))
    for _ in range(100):
        _ = torch.eye(4) @ torch.eye(4)
    module.late = parameter


MANY = {
    "ten of a list": (
        lambda m: setattr(m, "list", nn.ParameterList([nn.Parameter(torch.eye(4) @ torch.eye(4)) for _ in range(10)])),
        10,
    ),
    "of a compound": (lambda m: setattr(m, "p", nn.Parameter(torch.einsum("ij,jk", torch.eye(4), torch.eye(4)))), 1),
    "of what a layer gives": (lambda m: setattr(m, "p", nn.Parameter(nn.Linear(4, 4)(torch.eye(4)).detach())), 1),
    "registered much later": (late, 1),
}


@pytest.mark.parametrize("case", MANY)
def test_each_of_them_warns_once(case: str) -> None:
    make, count = MANY[case]
    hmp.convert(policy="hmp")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        make(nn.Module())
    assert len(warned) == count
