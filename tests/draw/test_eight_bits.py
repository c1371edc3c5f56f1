"""hmp.draw of ops in 8 bits (D56): the picture shows what a call of the model does, whose weights may need a gradient or none."""

from __future__ import annotations

import pytest
import torch
from drawn_models import converted
from int8_numbers import Product
from torch import nn

from habana_mp import hmp

DOWN = "float32 → bfloat16"
EIGHT_BITS = pytest.mark.parametrize("title", ["int8", "weight_int8"])


def policy(title: str, *ops: str) -> hmp.Policy:
    return hmp.Policy.load("balanced").with_edits(*(f"+{op}:{title}" for op in ops))


def found(drawing, kind: str) -> set[str]:
    return {f"{node.module}.{node.text}".removeprefix(".") for node in drawing.nodes if node.kind == kind}


def rules(drawing) -> dict[str, str]:
    """The list and the op of each op that a list has decided, by the module."""
    return {node.module: node.rule.partition(",")[0] for node in drawing.nodes if node.rule}


FRONT_ENDS = [
    pytest.param(lambda policy: hmp.autocast("cpu", policy=policy), id="autocast"),
    pytest.param(lambda policy: converted(policy=policy), id="convert"),
]


@EIGHT_BITS
@pytest.mark.parametrize("front_end", FRONT_ENDS)
class TestLinear:
    def test_a_frozen_weight(self, front_end, title) -> None:
        model = nn.Linear(64, 8).requires_grad_(False)
        with front_end(policy(title, "linear")):
            drawing = hmp.draw(model, torch.randn(2, 64))
        assert [(node.kind, node.text, node.dtype, node.shape, node.rule) for node in drawing.nodes] == [
            ("input", "input", "float32", "2×64", ""),
            ("cast", DOWN, "bfloat16", "2×64", ""),
            ("parameter", "bias", "float32", "8", ""),
            ("op", "linear", "bfloat16", "2×8", f"{title}: linear, balanced+edits"),
            ("output", "output", "bfloat16", "2×8", ""),
        ]
        assert not any(weight.requires_grad for weight in model.parameters())

    def test_a_trained_weight(self, front_end, title) -> None:
        with front_end(policy(title, "linear")):
            drawing = hmp.draw(nn.Linear(64, 8), torch.randn(2, 64))
        assert rules(drawing) == {"": f"lower instead of {title}: linear"}
        assert [node.text for node in drawing.nodes if node.kind == "cast"] == [DOWN] * 3
        assert f"lower instead of {title}: linear" in drawing.source

    @pytest.mark.parametrize("region", [torch.no_grad, torch.inference_mode], ids=lambda region: region.__name__)
    def test_a_trained_weight_where_gradients_are_off(self, front_end, title, region) -> None:
        model = nn.Linear(64, 8)
        with front_end(policy(title, "linear")), region():
            drawing = hmp.draw(model, torch.randn(2, 64))
        assert rules(drawing) == {"": f"{title}: linear"}
        assert all(weight.requires_grad for weight in model.parameters())


@EIGHT_BITS
@pytest.mark.parametrize(
    ("op", "model", "x"),
    [
        ("matmul", Product(), torch.randn(2, 64)),
        ("conv1d", nn.Conv1d(2, 4, 3), torch.randn(1, 2, 6)),
        ("conv2d", nn.Conv2d(2, 4, 3), torch.randn(1, 2, 6, 6)),
        ("conv3d", nn.Conv3d(2, 4, 3), torch.randn(1, 2, 6, 6, 6)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_op_has_the_name_of_its_call(op, model, x, title) -> None:
    with torch.no_grad(), hmp.autocast("cpu", policy=policy(title, op)):
        assert rules(hmp.draw(model, x)) == {"": f"{title}: {op}"}
        assert found(hmp.draw(model, x), "op") == {op}


def vision() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Linear(4, 8)), torch.randn(1, 1, 6, 6)


def text() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Embedding(16, 8), nn.LayerNorm(8), nn.Linear(8, 4)), torch.tensor([[1, 2, 3]])


# What the lists for 8 bits name; the rules of the ops; the matrices in the picture.
FROZEN = [
    pytest.param(vision, ["linear"], {"0": "lower: conv2d", "2": "int8: linear"}, {"0.weight"}, id="linear"),
    pytest.param(vision, ["conv2d"], {"0": "int8: conv2d", "2": "lower: linear"}, {"2.weight"}, id="conv2d"),
    pytest.param(vision, ["linear@float16"], {"0": "lower: conv2d", "2": "lower: linear@bfloat16"}, {"0.weight", "2.weight"}, id="float16"),
    pytest.param(text, ["linear"], {"1": "fp32: layer_norm", "2": "int8: linear"}, {"0.weight", "1.weight"}, id="behind-embedding"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "listed", "by_module", "weights"), FROZEN)
def test_frozen_weights_of_other_ops_are_in_the_picture(make, listed, by_module, weights) -> None:
    model, x = make()
    with hmp.autocast("cpu", policy=policy("int8", *listed)):
        drawing = hmp.draw(model.requires_grad_(False), x)
    assert rules(drawing) == by_module
    assert {name for name in found(drawing, "parameter") if name.endswith("weight")} == weights


def test_a_frozen_embedding_is_not_in_the_picture() -> None:
    model, x = text()
    with hmp.autocast("cpu", policy=policy("weight_int8", "embedding")):
        drawing = hmp.draw(model.requires_grad_(False), x)
    assert found(drawing, "op") == {"1.layer_norm", "2.linear"}


def test_only_in_some_modules() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).requires_grad_(False)
    edited = hmp.Policy.load("balanced").with_edits("+linear in 1:int8")
    with hmp.set_policies(model, edited), hmp.autocast("cpu", policy=edited):
        drawing = hmp.draw(model, torch.randn(2, 8))
    assert rules(drawing) == {"0": "lower: linear", "1": "int8: linear"}
    assert found(drawing, "parameter") == {"0.weight", "0.bias", "1.bias"}


def test_a_tied_weight_is_frozen_where_it_runs_in_8_bits() -> None:
    model, x = text()
    model[2] = nn.Linear(8, 16, bias=False)
    model[2].weight = model[0].weight
    with torch.no_grad(), hmp.autocast("cpu", policy=policy("int8", "linear")):
        drawing = hmp.draw(model, x)
    assert found(drawing, "op") == {"0.embedding", "1.layer_norm", "2.linear"}
    assert rules(drawing)["2"] == "int8: linear"


class Kept(nn.Module):
    """Writes what it was given into a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Parameter(torch.zeros(4, 8))
        self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last.copy_(x)
        return self.norm(self.linear(x))


def test_weights_are_as_before_where_the_model_writes_to_one() -> None:
    """They were left with gradients: the one that is written to is no leaf, and refused its flag."""
    model = Kept().requires_grad_(False)
    with hmp.autocast("cpu", policy=policy("int8", "linear")):
        hmp.draw(model, torch.randn(4, 8))
    assert {(weight.requires_grad, weight.is_leaf) for weight in model.parameters()} == {(False, True)}


REGIONS = {
    "disable_casts": (hmp.disable_casts, "convert", None),
    "disable_casts in a region": (hmp.disable_casts, "autocast", None),
    "torch.autocast": (lambda: torch.autocast("cpu", dtype=torch.bfloat16), "convert", "lower instead of int8: linear"),
}


@pytest.mark.filterwarnings("ignore:.*autocast")
@pytest.mark.parametrize(("region", "front_end", "rule"), REGIONS.values(), ids=REGIONS)
def test_where_nothing_runs_in_8_bits_frozen_weights_are_in_the_picture(region, front_end, rule) -> None:
    eight = policy("int8", "linear")
    around = converted(policy=eight) if front_end == "convert" else hmp.autocast("cpu", policy=eight)
    with around, region():
        drawing = hmp.draw(nn.Linear(8, 4).requires_grad_(False), torch.randn(2, 8))
    assert found(drawing, "parameter") == {"weight", "bias"}
    assert rules(drawing) == ({"": rule} if rule else {})


def test_a_model_of_integers_in_8_bits_alone_says_why_there_is_no_graph() -> None:
    model = nn.Sequential(nn.Embedding(8, 8), nn.Linear(8, 4, bias=False)).requires_grad_(False)
    eight = hmp.Policy.load("balanced").with_edits("+linear:int8", "+embedding:weight_int8")
    with hmp.autocast("cpu", policy=eight), pytest.raises(ValueError, match="such as integers and weights in 8 bits"):
        hmp.draw(model, torch.tensor([1, 2]))


def test_of_a_tensor() -> None:
    model = nn.Linear(64, 8).requires_grad_(False)
    with hmp.autocast("cpu", policy=policy("int8", "linear")):
        y = model(torch.randn(2, 64, requires_grad=True))
    assert found(hmp.draw(y), "op") == {"product in 8 bits"}
