"""torch.jit.trace and freeze under convert (F169 to F174, D35)."""

import copy

import pytest
import torch
from torch import nn

from habana_mp import hmp

BF16, FP32 = torch.bfloat16, torch.float32

# torch.jit is deprecated; the guides use it (F169).
pytestmark = [
    pytest.mark.filterwarnings("ignore:Converting a tensor to a Python boolean"),
]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


class Simple(nn.Module):
    """SimpleNet of F248, smaller."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False)

    def forward(self, x):
        return self.conv(x)


MODELS = {
    "simple": (Simple, lambda: torch.randn(2, 3, 8, 8)),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.Linear(144, 5),
            nn.Softmax(-1),
        ),
        lambda: torch.randn(2, 3, 8, 8),
    ),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 8, 0.0, batch_first=True), lambda: torch.randn(2, 3, 8)),
    "lstm": (lambda: nn.LSTM(4, 3, batch_first=True), lambda: torch.randn(2, 5, 4)),
}


def first(result):
    return result[0] if isinstance(result, tuple) else result


def casts(graph) -> int:
    return sum(node.kind() == "aten::to" for node in graph.nodes())


@pytest.mark.parametrize("policy", ["hmp", "hmp-o1", "hmp-o2"])
@pytest.mark.parametrize("model", MODELS)
class TestTrace:
    def test_a_traced_model_keeps_its_casts_after_revert(self, model, policy):
        module, x = MODELS[model][0]().eval(), MODELS[model][1]()
        hmp.convert(policy=policy)
        with torch.no_grad():
            expected = first(module(x))
            traced = torch.jit.trace(module, x)
            assert torch.equal(first(traced(x)), expected)
        hmp.revert()
        out = first(traced(x))
        assert out.dtype == expected.dtype
        assert torch.equal(out, expected)

    def test_frozen_f169(self, model, policy):
        module, x = MODELS[model][0]().eval(), MODELS[model][1]()
        hmp.convert(policy=policy)
        with torch.no_grad():
            expected = first(module(x))
            frozen = torch.jit.freeze(torch.jit.trace(module, x))
            hmp.revert()
            out = first(frozen(x))
        assert out.dtype == expected.dtype
        torch.testing.assert_close(out, expected, atol=0.02, rtol=0.02)


class TestTraceInDetail:
    def test_casts_are_in_the_graph_f173(self):
        a = torch.randn(2, 2)
        hmp.convert()
        traced = torch.jit.trace(lambda a: torch.mm(a, a), (a,))
        assert casts(traced.graph) == 1  # the same tensor twice is cast once
        assert traced(a).dtype == BF16

    def test_with_gradients(self):
        module, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(3, 4)
        other = copy.deepcopy(module)
        hmp.convert()
        traced = torch.jit.trace(other, x)
        for m in (module, traced):
            m(x).float().square().sum().backward()
        hmp.revert()
        for ours, expected in zip(other.parameters(), module.parameters(), strict=True):
            assert torch.equal(ours.grad, expected.grad)

    def test_a_weight_used_twice_d35(self):
        """The trace runs again without grad and is compared: casts are the same with and without."""
        layer, x = nn.Linear(4, 4), torch.randn(2, 4)
        hmp.convert()
        twice = nn.Sequential(layer, layer)
        assert torch.equal(torch.jit.trace(twice, (x,), check_trace=True)(x), twice(x))

    def test_disable_casts_inside(self):
        def function(a):
            with hmp.disable_casts():
                full = torch.mm(a, a)
            return full, torch.mm(a, a)

        a = torch.randn(2, 2)
        hmp.convert()
        traced = torch.jit.trace(function, (a,))
        hmp.revert()
        assert [t.dtype for t in traced(a)] == [FP32, BF16]

    def test_traced_before_convert_stays_as_it_was(self):
        a = torch.randn(2, 2)
        traced = torch.jit.trace(lambda a: torch.mm(a, a), (a,))
        hmp.convert()
        assert traced(a).dtype == FP32

    def test_saved_and_loaded(self, tmp_path):
        layer, x = nn.Linear(4, 4).eval(), torch.randn(2, 4)
        hmp.convert()
        expected = layer(x)
        torch.jit.trace(layer, x).save(tmp_path / "traced.pt")
        hmp.revert()
        assert torch.equal(torch.jit.load(tmp_path / "traced.pt")(x), expected)

    def test_optimize_for_inference(self):
        module, x = Simple().eval(), torch.randn(1, 3, 8, 8)
        hmp.convert()
        with torch.no_grad():
            expected = module(x)
            optimized = torch.jit.optimize_for_inference(torch.jit.trace(module, x))
            torch.testing.assert_close(optimized(x).to(BF16), expected, atol=0.02, rtol=0.02)
