"""The preset balanced (D46): what its files say, and that it is as exact as torch.autocast on models of all kinds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from habana_mp import hmp
from habana_mp._policy.names import known_names
from zoo import small_models

FOLDER = Path(__file__).parent.parent.parent / "lists" / "balanced"


def lines(name: str) -> list[str]:
    return [line for line in (FOLDER / f"{name}.txt").read_text().splitlines() if line and not line.startswith("#")]


def names(name: str) -> list[str]:
    return [line.partition("  #")[0].partition("@")[0] for line in lines(name)]


@pytest.mark.parametrize("name", ["lower", "fp32", "promote"])
def test_every_name_is_there_once_and_known_to_torch(name):
    assert len(names(name)) == len({*names(name)})
    assert {*names(name)} <= known_names()


@pytest.mark.parametrize("name", ["lower", "fp32"])
def test_every_line_has_its_evidence(name):
    said = [line.partition("  # ")[2] for line in lines(name)]
    assert all(said)
    assert sum("error " in each or "loses " in each for each in said) >= len(said) / 2


def test_no_op_is_in_two_lists():
    assert not {*names("lower")} & {*names("fp32")}
    assert not {*names("promote")} & {*names("lower"), *names("fp32")}


def test_what_torch_lowers_is_lower():
    """But einsum: what it is made of is lowered where it is a matrix product."""
    wanted = {op for preset in ("torch-cpu", "torch-cuda") for op in hmp.Policy.load(preset).lists["lower"]}
    assert {*hmp.Policy.load("balanced").lists["lower"]} == wanted - {"einsum"}


RULES = [
    ("linear", "lower", "lower"),
    ("scaled_dot_product_attention", "lower", "lower"),
    ("cos", "fp32", "fp32"),
    ("sin", "fp32", "fp32"),
    ("sum", "fp32", "fp32"),
    ("cumsum", "fp32", "fp32"),
    ("exp", "fp32", "fp32"),
    ("log", "fp32", "fp32"),
    ("log_softmax", "fp32", "fp32"),
    ("cross_entropy", "fp32", "fp32"),
    ("mse_loss", "fp32", "fp32"),
    ("binary_cross_entropy", "fp32", "fp32"),
    ("layer_norm", "fp32", "fp32"),
    ("pow", "rest", "fp32"),
    ("__pow__", "rest", "fp32"),
    ("relu", "rest", "rest"),
    ("cat", "promote", "promote"),
]


@pytest.mark.parametrize(("op", "bfloat16", "float16"), RULES, ids=[op for op, *_ in RULES])
def test_rules(op, bfloat16, float16):
    policy = hmp.Policy.load("balanced")
    assert policy.rule(op).action == bfloat16
    assert policy.with_low_dtype("float16").rule(op).action == float16


@pytest.fixture(params=["autocast", "convert"])
def balanced(request):
    yield lambda call: _under(request.param, call)
    hmp.revert()


def _under(front_end, call):
    if front_end == "convert":
        hmp.convert(policy="balanced")
        return call()
    with hmp.autocast("cpu", policy="balanced"):
        return call()


def test_rotary_positions_are_those_of_float32(balanced):
    rotary = LlamaRotaryEmbedding(LlamaConfig(hidden_size=64, num_attention_heads=4))
    x, positions = torch.randn(1, 2048, 64), torch.arange(2048)[None]
    exact = rotary(x, positions)
    found = balanced(lambda: rotary(x, positions))
    assert all(torch.equal(a, b) for a, b in zip(exact, found, strict=True))


def test_rotary_positions_of_an_einsum_are_those_of_float32(balanced):
    """As a list with einsum in it would not have them: 2,047 is no number of bfloat16."""
    positions, frequencies = torch.arange(2048.0), 10000.0 ** -torch.linspace(0, 1, 32)
    exact = torch.einsum("i,j->ij", positions, frequencies).cos()
    assert torch.equal(balanced(lambda: torch.einsum("i,j->ij", positions, frequencies).cos()), exact)


def test_losses_are_float32(balanced):
    weight, x, target = torch.randn(4, 8), torch.randn(16, 8), torch.randint(0, 4, (16,))

    def losses():
        logits = F.linear(x, weight)
        assert logits.dtype == torch.bfloat16
        return (
            F.cross_entropy(logits, target),
            F.mse_loss(logits, torch.zeros(16, 4)),
            logits.sum(),
            logits.softmax(-1).log().mean(),
        )

    assert {loss.dtype for loss in balanced(losses)} == {torch.float32}


@pytest.mark.parametrize("name", small_models.MODELS)
def test_no_error_is_larger_than_that_of_torch_autocast(name):
    """But for chance: a model this small has few numbers, whose roundings differ."""
    made = small_models.trained(name, 1)

    def error(region) -> float:
        with torch.no_grad(), region:
            return ((made.logits().double() - exact).norm() / exact.norm()).item()

    with torch.no_grad():
        exact = made.logits().double()
    assert error(hmp.autocast("cpu", policy="balanced")) <= 1.1 * error(torch.autocast("cpu"))
