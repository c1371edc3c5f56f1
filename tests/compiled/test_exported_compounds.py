"""An exported program has the casts inside ops that are made of others (pytorch#137274)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from habana_mp import hmp

BF16 = torch.bfloat16
POLICY = hmp.Policy.from_ops(lower=["bmm", "mm"], fp32=["sum"], name="products")
COMPOUNDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, x),
    "tensordot": lambda x: torch.tensordot(x, x, 1),
    "inner": lambda x: torch.inner(x, x),
}


class Calls(nn.Module):
    def __init__(self, function, policy=None) -> None:
        super().__init__()
        self.function = function
        self.policy = policy

    def forward(self, x):
        if self.policy is None:
            return self.function(x)
        with hmp.autocast("cpu", policy=self.policy):
            return self.function(x)


def check(model: nn.Module, strict: bool, scope) -> None:
    x = torch.randn(4, 4)
    with scope:
        expected = model(x)
        program = torch.export.export(model, (x,), strict=strict)
    hmp.revert()
    assert expected.dtype == BF16
    assert torch.equal(program.module()(x), expected)
    assert torch.equal(program.run_decompositions().module()(x), expected)


pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # torch's own, of its trees
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.mark.parametrize("strict", [False, True], ids=["loose", "strict"])
@pytest.mark.parametrize("compound", COMPOUNDS)
def test_in_a_region_outside(compound: str, strict: bool) -> None:
    check(Calls(COMPOUNDS[compound]), strict, hmp.autocast("cpu", policy=POLICY))


@pytest.mark.parametrize("compound", ["einsum", "tensordot"])
def test_in_a_region_inside(compound: str) -> None:
    check(Calls(COMPOUNDS[compound], POLICY), False, torch.no_grad())


@pytest.mark.parametrize("strict", [False, True], ids=["loose", "strict"])
@pytest.mark.parametrize("compound", COMPOUNDS)
def test_under_convert(compound: str, strict: bool) -> None:
    hmp.convert(policy=POLICY)
    check(Calls(COMPOUNDS[compound]), strict, torch.enable_grad())


def test_under_convert_in_a_process_without_regions(tmp_path) -> None:
    """A region that was entered before had torch.export record casts; a conversion had not."""
    script = tmp_path / "script.py"
    script.write_text(
        """
import torch
from habana_mp import hmp


class Product(torch.nn.Module):
    def forward(self, x):
        return torch.einsum("ij,jk->ik", x, x)


hmp.convert()
for strict in (False, True):
    print(torch.export.export(Product(), (torch.randn(4, 4),), strict=strict).module()(torch.randn(4, 4)).dtype)
"""
    )
    ended = subprocess.run([sys.executable, "-W", "ignore", script], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["torch.bfloat16"] * 2


@pytest.mark.parametrize("compound", COMPOUNDS)
def test_under_convert_of_fake_tensors(compound: str) -> None:
    """Their class takes part in no __torch_function__, and was asked for one: the parts of a compound were not cast."""
    hmp.convert(policy=POLICY)
    with FakeTensorMode():
        assert COMPOUNDS[compound](torch.randn(4, 4)).dtype == BF16


def test_without_a_policy_the_op_stays_one() -> None:
    with hmp.autocast("cpu", policy=POLICY):
        pass
    program = torch.export.export(Calls(COMPOUNDS["einsum"]), (torch.randn(4, 4),))
    assert [node.target for node in program.graph.nodes if node.op == "call_function"] == [
        torch.ops.aten.einsum.default
    ]
