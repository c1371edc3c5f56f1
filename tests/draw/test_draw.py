"""hmp.draw: what stands in the picture of an autograd graph, and where."""

from __future__ import annotations

import contextlib
import copy
from collections import Counter

import pytest
import torch
from drawn_models import Block, block, cnn, converted, encoder_layer, linear
from torch import nn
from torch.nn import functional as F

from habana_mp import hmp

DOWN, UP = "float32 → bfloat16", "bfloat16 → float32"


def names(drawing, kind: str) -> Counter:
    return Counter((node.text, node.module) for node in drawing.nodes if node.kind == kind)


FP32_LINEAR = hmp.Policy.from_ops(lower=["relu"], fp32=["linear"])

# Model, what is in force, {(cast, module): how many}.
CASTS = [
    pytest.param(linear, contextlib.nullcontext, {}, id="nothing-converted"),
    pytest.param(linear, converted, {(DOWN, ""): 3}, id="linear-convert"),
    pytest.param(
        linear, lambda: hmp.autocast("cpu", torch.float16), {("float32 → float16", ""): 3}, id="linear-autocast-float16"
    ),
    pytest.param(linear, lambda: torch.autocast("cpu"), {(DOWN, ""): 3}, id="linear-torch-autocast"),
    pytest.param(linear, lambda: converted(policy=FP32_LINEAR), {}, id="linear-fp32"),
    pytest.param(cnn, converted, {(DOWN, "0"): 3, (DOWN, "5"): 2, (UP, "6"): 1}, id="cnn-convert"),
    pytest.param(
        block,
        lambda: hmp.autocast("cpu"),
        {(DOWN, "attention.qkv"): 3, (DOWN, "attention.proj"): 1, (DOWN, "mlp.0"): 3, (DOWN, "mlp.2"): 2},
        id="block-autocast",
    ),
    pytest.param(
        encoder_layer,
        converted,
        {
            (DOWN, "self_attn"): 5,
            (UP, ""): 1,
            (DOWN, "norm1"): 1,
            (DOWN, "linear1"): 2,
            (DOWN, "linear2"): 2,
        },
        id="encoder-layer-convert",
    ),
]


@pytest.mark.parametrize(("make", "region", "casts"), CASTS)
def test_casts_stand_where_they_are_made(make, region, casts) -> None:
    model, x = make()
    with region():
        drawing = hmp.draw(model, x)
    assert names(drawing, "cast") == casts


@pytest.mark.parametrize(("make", "region", "casts"), CASTS)
def test_folded_modules_count_the_same_casts(make, region, casts) -> None:
    model, x = make()
    with region():
        folded = hmp.draw(model, x, depth=0)
    assert sorted(node.kind for node in folded.nodes) == ["input", "module", "output"]
    assert [node.casts for node in folded.nodes if node.kind == "module"] == [sum(casts.values())]


def attention_with_dropout() -> tuple[nn.Module, torch.Tensor]:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(8, 24)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            query, key, value = self.qkv(x).chunk(3, -1)
            out = torch.nn.functional.scaled_dot_product_attention(query, key, value, dropout_p=0.1)
            return torch.nn.functional.cross_entropy(out.flatten(0, 1), torch.tensor([1, 2, 3, 4]))

    return Net(), torch.randn(2, 2, 8)


@pytest.mark.parametrize("policy", ["hmp", "torch-cpu", "hpu-autocast", "xpu"])
@pytest.mark.parametrize("make", [attention_with_dropout, encoder_layer, block, cnn])
@pytest.mark.parametrize("front_end", ["convert", "autocast"])
def test_the_picture_has_the_casts_of_the_report(front_end, make, policy) -> None:
    """With dropout torch's attention computes in float32 inside, from bfloat16: its own casts are no policy's (D19)."""
    model, x = make()
    region = converted(policy=policy) if front_end == "convert" else hmp.autocast("cpu", policy=policy)
    with region, hmp.report() as report:
        drawing = hmp.draw(model, x)
    assert sum(node.casts for node in drawing.nodes) == report.casts()


def test_an_op_is_one_node_whatever_torch_makes_of_it() -> None:
    model, x = attention_with_dropout()
    with converted(policy="torch-cpu"):
        drawing = hmp.draw(model, x)
    found = [(node.text, node.dtype) for node in drawing.nodes if node.kind == "op"]
    assert found == [
        ("linear", "bfloat16"),
        ("split", "bfloat16"),
        ("scaled_dot_product_attention", "bfloat16"),
        ("cross_entropy", "float32"),
    ]
    attention = next(node for node in drawing.nodes if node.text == "scaled_dot_product_attention")
    assert attention.detail.startswith("ToCopyBackward0, ")


def test_everything_in_the_picture_of_a_linear() -> None:
    model, x = linear()
    with converted():
        drawing = hmp.draw(model, x)
    found = [(node.kind, node.text, node.dtype, node.shape) for node in drawing.nodes]
    assert sorted(found) == [
        ("cast", DOWN, "bfloat16", "2×4"),
        ("cast", DOWN, "bfloat16", "3"),
        ("cast", DOWN, "bfloat16", "3×4"),
        ("input", "input", "float32", "2×4"),
        ("op", "linear", "bfloat16", "2×3"),
        ("output", "output", "bfloat16", "2×3"),
        ("parameter", "bias", "float32", "3"),
        ("parameter", "weight", "float32", "3×4"),
    ]


def _write(x):
    y = torch.zeros(4, 4)
    y[:2] = x[:2]
    return y


class Fn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


SQUARE, IMAGE = (4, 4), (1, 2, 4, 4)
OPS = [
    ("linear", SQUARE, lambda x: F.linear(x, x, torch.ones(4))),
    ("linear", (2, 4, 4), lambda x: F.linear(x, torch.ones(4, 4).requires_grad_(), torch.ones(4).requires_grad_())),
    ("mm", SQUARE, lambda x: x @ x),
    ("bmm", (2, 4, 4), lambda x: x @ x),
    ("layer_norm", SQUARE, lambda x: F.layer_norm(x, (4,))),
    ("batch_norm", SQUARE, lambda x: F.batch_norm(x, None, None, training=True)),
    ("group_norm", SQUARE, lambda x: F.group_norm(x, 2)),
    ("conv2d", IMAGE, lambda x: F.conv2d(x, torch.ones(1, 2, 2, 2))),
    ("conv1d", (1, 2, 4), lambda x: F.conv1d(x, torch.ones(1, 2, 2))),
    ("conv_transpose2d", IMAGE, lambda x: F.conv_transpose2d(x, torch.ones(2, 1, 2, 2))),
    ("max_pool2d", IMAGE, lambda x: F.max_pool2d(x, 2)),
    ("softmax", SQUARE, lambda x: x.softmax(-1)),
    ("log_softmax", SQUARE, lambda x: x.log_softmax(-1)),
    ("scaled_dot_product_attention", IMAGE, lambda x: F.scaled_dot_product_attention(x, x, x)),
    ("write to a slice", SQUARE, _write),
    ("Fn", SQUARE, Fn.apply),
]


@pytest.mark.parametrize(("name", "shape", "call"), [pytest.param(*row, id=row[0]) for row in OPS])
def test_ops_have_the_names_of_their_calls(name, shape, call) -> None:
    drawing = hmp.draw(call(torch.randn(shape).requires_grad_()))
    assert name in [node.text for node in drawing.nodes if node.kind == "op"]


def test_ops_that_only_change_the_form_are_passed_over() -> None:
    x = torch.randn(2, 6, requires_grad=True)
    y = x.view(3, 4).t().unsqueeze(0).expand(5, 4, 3).permute(2, 0, 1).relu()
    drawing = hmp.draw(y)
    assert [node.text for node in drawing.nodes] == ["input", "relu", "output"]
    assert "view, t, unsqueeze, expand, permute" in drawing.source


def test_a_product_has_the_shape_that_its_caller_sees() -> None:
    model, _ = linear()
    assert [node.shape for node in hmp.draw(model, torch.randn(5, 2, 4)).nodes if node.kind == "op"] == ["5×2×3"]


def test_a_linear_without_bias_is_a_linear() -> None:
    assert names(hmp.draw(nn.Linear(4, 3, bias=False), torch.randn(2, 4)), "op") == {("linear", ""): 1}


def test_a_shared_module_has_a_frame_for_each_call() -> None:
    shared = nn.Linear(4, 4)
    svg = hmp.draw(nn.Sequential(shared, nn.ReLU(), shared), torch.randn(2, 4))._repr_svg_()
    assert "0: Linear" in svg
    assert "0: Linear, call 2" in svg


def test_weights_used_without_their_module_stand_in_the_module_that_is_called() -> None:
    model, x = encoder_layer()
    weights = names(hmp.draw(model, x), "parameter")
    assert weights["out_proj.weight", "self_attn"] == 1
    assert weights["weight", "linear1"] == 1


def test_a_cast_that_the_cache_kept_stands_in_this_call() -> None:
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU())
    x = torch.randn(2, 512)
    with converted():
        kept = model(x)
        hits = hmp.cache.info().hits
        drawing = hmp.draw(model, x)
        assert hmp.cache.info().hits > hits
        del kept
    assert names(drawing, "cast") == {(DOWN, "0"): 3}


def test_parts_with_policies_of_their_own_cast_in_their_frames() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with hmp.set_policies(model, {"1": "fp32"}), hmp.autocast("cpu"):
        drawing = hmp.draw(model, torch.randn(2, 4))
    assert names(drawing, "cast") == {(DOWN, "0"): 3, (UP, "1"): 1}


def test_a_module_copied_inside_the_call_has_no_frame() -> None:
    class Copies(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return copy.deepcopy(self.inner)(self.inner(x))

    assert names(hmp.draw(Copies(), torch.randn(2, 4)), "op") == {("linear", "inner"): 1, ("linear", ""): 1}


def test_inputs_and_outputs_have_names() -> None:
    class Two(nn.Module):
        def forward(self, x, y, *, scale):
            return {"sum": x + y, "rest": [x * scale, 3, torch.ones(2)]}

    drawing = hmp.draw(Two(), torch.ones(2), torch.ones(2), scale=torch.tensor(2.0))
    assert {text for text, _ in names(drawing, "input")} == {"input 0", "input 1", "scale"}
    assert {text for text, _ in names(drawing, "output")} == {"output['sum']", "output['rest'][0]"}


def test_the_model_and_its_inputs_stay_as_they_were() -> None:
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 3))
    model[1].weight.requires_grad_(False)
    x = torch.randn(2, 4)
    before = x.clone()
    drawing = hmp.draw(model, x)
    assert [node.detail for node in drawing.nodes if node.text == "weight"] == ["frozen"]
    assert torch.equal(x, before)
    assert not x.requires_grad
    assert [weight.requires_grad for weight in model.parameters()] == [False, True]
    assert all(weight.grad is None for weight in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_after_an_error_in_the_model_it_stays_as_it_was() -> None:
    model, _ = linear()
    model.weight.requires_grad_(False)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        hmp.draw(model, torch.randn(2, 5))
    assert not model.weight.requires_grad
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


@pytest.mark.parametrize("region", [torch.no_grad, torch.inference_mode], ids=lambda region: region.__name__)
def test_a_model_is_drawn_where_gradients_are_off(region) -> None:
    model, _ = linear()
    with region():
        drawing = hmp.draw(model, torch.randn(2, 4))
        assert torch.is_grad_enabled() is False
    assert names(drawing, "op") == {("linear", ""): 1}


def test_a_compiled_model_is_drawn_as_it_was_written() -> None:
    model, x = cnn()
    assert sorted(text for text, _ in names(hmp.draw(torch.compile(model, backend="eager"), x), "op")) == sorted(
        text for text, _ in names(hmp.draw(model, x), "op")
    )


def test_a_scripted_model_has_no_frames() -> None:
    drawing = hmp.draw(torch.jit.script(nn.Sequential(nn.Linear(4, 3), nn.ReLU())), torch.randn(2, 4))
    assert {text for text, _ in names(drawing, "parameter")} == {"0.weight", "0.bias"}


# The levels of: the encoder, its layers, their parts.
DEPTHS = [
    (0, {"TransformerEncoder"}),
    (1, {"layers.0: TransformerEncoderLayer", "layers.1: TransformerEncoderLayer"}),
    (2, {"self_attn: MultiheadAttention", "norm1: LayerNorm", "linear1: Linear", "dropout: Dropout"}),
    (3, set()),
]


@pytest.mark.parametrize(("depth", "folded"), DEPTHS)
def test_depth_is_how_many_levels_are_open(depth, folded) -> None:
    layer, x = encoder_layer()
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    found = {text for text, _ in names(hmp.draw(model, x, depth=depth), "module")}
    assert found >= folded
    assert bool(found) == bool(folded)


@pytest.mark.parametrize(("layers", "kinds"), [(1, 0), (12, 12 * 3)], ids=["small", "large"])
def test_by_default_a_picture_can_be_read(layers, kinds) -> None:
    drawing = hmp.draw(nn.Sequential(*(Block() for _ in range(layers))), torch.randn(2, 5, 8))
    assert len(drawing.nodes) <= 80
    assert sum(node.kind == "module" for node in drawing.nodes) == kinds


class TestErrors:
    """A report with values colours the picture."""

    @staticmethod
    def drawn():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
        x = torch.randn(4, 8)
        with hmp.autocast("cpu", policy="hmp"), hmp.report(values="errors") as report:
            model(x).sum().backward()
        with hmp.autocast("cpu", policy="hmp"):
            return (
                hmp.draw(model, x, report=report, depth=9),
                hmp.draw(model, x, report=report, depth=0),
                report,
                model,
                x,
            )

    def test_ops_and_folded_modules_have_their_share(self):
        open_, folded, report, _, _ = self.drawn()
        shares = {(node.text, node.module): node.share for node in open_.nodes if node.kind == "op"}
        assert shares["linear", "2"] == pytest.approx(report.error_share("linear", "2"))
        in_model = 1 - report.error_share(module="")
        assert sum(shares.values()) == pytest.approx(in_model)
        assert (
            f"{round(100 * shares['linear', '2'])} % of the error" in open_.source or "% of the error" in open_.source
        )
        assert sum(node.share for node in folded.nodes) == pytest.approx(in_model)

    def test_an_op_has_its_list_and_line(self):
        open_, *_ = self.drawn()
        rules = {node.text: node.rule for node in open_.nodes if node.kind == "op"}
        assert rules["linear"].startswith("lower: linear, lists/hmp/lower.txt:")
        assert "lower, lower.txt:" in open_.source

    def test_what_is_no_report_is_refused(self):
        *_, model, x = self.drawn()
        with pytest.raises(TypeError, match=r"report must be an hmp\.CastReport with values, not 3"):
            hmp.draw(model, x, report=3)
        with hmp.report() as plain:
            pass
        with pytest.raises(RuntimeError, match="nothing was measured"):
            hmp.draw(model, x, report=plain)
