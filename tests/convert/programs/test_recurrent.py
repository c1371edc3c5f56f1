"""Layers of torch that are made of others in C++, under convert: recurrent ones, and the fused encoder of transformers."""

import copy

import pytest
import torch
from torch import nn

from habana_mp import hmp

BF16, FP32 = torch.bfloat16, torch.float32


LAYERS = {
    "lstm": lambda: nn.LSTM(4, 3, num_layers=2, bidirectional=True, batch_first=True),
    "lstm-projection": lambda: nn.LSTM(4, 5, proj_size=3, batch_first=True),
    "gru": lambda: nn.GRU(4, 3, num_layers=2, batch_first=True),
    "rnn-tanh": lambda: nn.RNN(4, 3, batch_first=True),
    "rnn-relu": lambda: nn.RNN(4, 3, nonlinearity="relu", batch_first=True),
}
CELLS = {
    "lstm": lambda: nn.LSTMCell(4, 3),
    "gru": lambda: nn.GRUCell(4, 3),
    "rnn-tanh": lambda: nn.RNNCell(4, 3),
    "rnn-relu": lambda: nn.RNNCell(4, 3, nonlinearity="relu"),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
class TestRecurrent:
    """Recurrent layers and cells work after a bf16 op: state and weights take the dtype of the input (D15, D16)."""

    @staticmethod
    def flat(result):
        return (
            [result] if isinstance(result, torch.Tensor) else [t for part in result for t in TestRecurrent.flat(part)]
        )

    def check(self, module, call, x):
        """``call(module, input)`` after a bf16 op, against the module with all its weights cast to bfloat16 by hand."""
        hmp.convert()
        low = torch.mm(x.flatten(0, -2), torch.eye(4)).view(x.shape)
        assert low.dtype == BF16
        converted = self.flat(call(module, low))
        torch.stack([t.float().sum() for t in converted]).sum().backward()
        gradients = [parameter.grad for parameter in module.parameters()]
        hmp.revert()
        module.zero_grad()
        by_hand = copy.deepcopy(module).to(BF16)
        expected = self.flat(call(by_hand, low))
        torch.stack([t.float().sum() for t in expected]).sum().backward()
        assert [t.dtype for t in converted] == [BF16] * len(converted)
        assert all(map(torch.equal, converted, expected))
        assert {gradient.dtype for gradient in gradients} == {FP32}
        for gradient, parameter in zip(gradients, by_hand.parameters(), strict=True):
            assert torch.equal(gradient, parameter.grad.float())

    @pytest.mark.parametrize("layer", LAYERS)
    def test_layer_after_a_bf16_op(self, layer):
        torch.manual_seed(0)
        self.check(LAYERS[layer](), lambda module, x: module(x), torch.randn(2, 5, 4))

    @pytest.mark.parametrize("cell", CELLS)
    def test_cell_after_a_bf16_op(self, cell):
        torch.manual_seed(0)
        self.check(CELLS[cell](), lambda module, x: module(x), torch.randn(2, 4))

    @pytest.mark.parametrize("layer", LAYERS)
    def test_layer_with_a_float32_state(self, layer):
        """A state of another dtype than the input takes the input's, as all tensors of the call do."""
        torch.manual_seed(0)
        module = LAYERS[layer]()
        x = torch.randn(2, 5, 4)
        state = module(x)[1]
        hmp.convert()
        assert {t.dtype for t in self.flat(module(x.bfloat16(), state))} == {BF16}

    @pytest.mark.parametrize("layer", LAYERS)
    def test_packed_sequence(self, layer):
        torch.manual_seed(0)
        module, x = LAYERS[layer](), torch.randn(2, 5, 4)
        hmp.convert()
        packed = nn.utils.rnn.pack_padded_sequence(x.bfloat16(), [5, 3], batch_first=True)
        out, _ = nn.utils.rnn.pad_packed_sequence(module(packed)[0], batch_first=True)
        alone = module(x[1:, :3].bfloat16())[0]
        assert out.dtype == BF16
        if not getattr(module, "bidirectional", False):
            assert torch.equal(out[1, :3], alone[0])

    @pytest.mark.parametrize("layer", LAYERS)
    def test_the_lists_decide_what_they_are_made_of(self, layer):
        """As in a region, bit for bit (D40, D41)."""
        torch.manual_seed(0)
        module, x = LAYERS[layer](), torch.randn(2, 5, 4)
        with hmp.autocast("cpu", policy="hmp-o1"):
            expected = module(x)
        hmp.convert(policy="hmp-o1")
        assert all(map(torch.equal, self.flat(module(x)), self.flat(expected)))

    def test_wrong_shapes_are_refused_as_ever(self):
        hmp.convert()
        with pytest.raises((RuntimeError, ValueError), match="must be equal to input_size"):
            nn.LSTM(4, 3)(torch.randn(2, 5, 6).bfloat16())


class TestTransformerEncoder:
    """torch's own encoder in evaluation has a fused layer that would run past linear, layer_norm and softmax."""

    @pytest.mark.parametrize("mask", [None, "padding"])
    @pytest.mark.parametrize("grad", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
    def test_evaluation_equals_training_mode(self, grad, mask):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=mask is not None)
        x = torch.randn(2, 6, 16)
        padding = None if mask is None else torch.arange(6)[None] >= torch.tensor([6, 4])[:, None]
        hmp.convert()
        model.train()
        expected = model(x, src_key_padding_mask=padding)
        model.eval()
        with grad():
            out = model(x, src_key_padding_mask=padding)
        assert out.dtype == expected.dtype == BF16
        assert torch.equal(out, expected.detach())
        hmp.revert()
        assert torch.backends.mha.get_fastpath_enabled()

    def test_multi_head_attention_in_evaluation(self):
        torch.manual_seed(0)
        model = nn.MultiheadAttention(16, 2, batch_first=True).eval()
        x = torch.randn(2, 6, 16)
        hmp.convert()
        with torch.no_grad():
            out, weights = model(x, x, x)
        assert (out.dtype, weights.dtype) == (BF16, FP32)  # linear lower, softmax fp32 (D19)


def test_a_parametrized_weight_is_computed_as_often_as_without_lists() -> None:
    """Spectral norm changes its state with each look at the weight."""
    counts = []

    class Counts(nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            counts.append(1)
            return weight

    layer = nn.LSTM(8, 8)
    nn.utils.parametrize.register_parametrization(layer, "weight_ih_l0", Counts())
    layer(torch.randn(3, 2, 8))
    alone = len(counts)
    hmp.convert(policy=hmp.Policy.from_ops(lower=["mm"]))
    counts.clear()
    layer(torch.randn(3, 2, 8))
    assert len(counts) <= alone
