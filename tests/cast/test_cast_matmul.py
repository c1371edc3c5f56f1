"""Casts of what matmul would copy: contiguous ones, and products with the numbers and strides of torch."""

import pytest
import torch
import torch.nn.functional as F
from cast_leaves import BF16, dense
from torch import nn

from habana_mp import hmp

pytestmark = pytest.mark.usefixtures("empty_cache")

TURNS = {
    "3d-swapped-batch": lambda: torch.randn(5, 3, 8).transpose(0, 1),
    "3d-transposed": lambda: torch.randn(3, 8, 5).transpose(1, 2),
    "3d-rotated": lambda: torch.randn(8, 3, 5).permute(1, 2, 0),
    "4d-heads": lambda: torch.randn(2, 5, 3, 8).transpose(1, 2),
    "4d-heads-turned": lambda: torch.randn(2, 5, 8, 3).permute(0, 3, 1, 2),
    "4d-channels-last": lambda: torch.randn(2, 3, 5, 8).to(memory_format=torch.channels_last),
    "3d-gaps": lambda: torch.randn(3, 5, 16)[..., ::2],
    "3d-expanded": lambda: torch.randn(1, 5, 8).expand(3, 5, 8),
    "3d-contiguous": lambda: torch.randn(3, 5, 8),
    "2d-transposed": lambda: torch.randn(8, 5).t(),
    "5d": lambda: torch.randn(2, 5, 2, 3, 8).permute(2, 0, 3, 1, 4),
}


class TestMatmulInputs:
    """Activations that matmul would copy are cast to contiguous ones; what comes out has the numbers and strides of torch."""

    @pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
    @pytest.mark.parametrize("turn", TURNS)
    def test_a_product(self, turn, mode):
        x = TURNS[turn]().requires_grad_()
        layer = nn.Linear(8, 4)
        low = [p.detach().to(BF16) for p in layer.parameters()]
        # Torch's own way with what is not contiguous differs by a rounding. It reads transposed matrices as they are.
        straight = x.to(BF16) if turn == "3d-transposed" else x.to(BF16).contiguous()
        right = torch.randn(*x.shape[:-2], 8, 6) if x.dim() > 2 else torch.randn(8, 6)
        with mode():
            expected = [
                F.linear(straight, *low),
                x.to(BF16) @ right.to(BF16),
                torch.matmul(right.mT.to(BF16), x.mT.to(BF16)),
            ]
            lie = [F.linear(x.to(BF16), *low).stride(), expected[1].stride(), expected[2].stride()]
            hmp.convert()
            results = [layer(x), x @ right, torch.matmul(right.mT, x.mT)]
            hmp.revert()
        assert [result.dtype for result in results] == [BF16] * 3
        assert all(map(torch.equal, results, expected))
        assert [result.stride() for result in results] == lie

    @pytest.mark.parametrize("turn", TURNS)
    def test_its_gradient(self, turn):
        leaf = TURNS[turn]().detach().requires_grad_()
        weight = torch.randn(4, 8)
        grads = []
        for low in (lambda t: t.to(BF16).contiguous(), lambda t: t):
            if grads:
                hmp.convert()
            for x in (leaf, leaf * 2):
                y = F.linear(low(x), low(weight))
                grads.append(torch.autograd.grad(y, x, dense(y))[0])
        assert torch.equal(grads[0], grads[2])
        assert torch.equal(grads[1], grads[3])

    def test_the_caller_sees_his_own_strides(self):
        """Only products get contiguous casts: what hands out its input gives it as it lies."""
        hmp.convert(policy=hmp.Policy.from_ops(lower=["resolve_conj", "linear"]))
        x = TURNS["4d-heads"]()
        assert torch.resolve_conj(x).stride() == x.to(BF16).stride()
        assert hmp.cast(x, BF16).stride() == x.to(BF16).stride()

    @pytest.mark.parametrize("cast_to_float", [False, True])
    def test_convolutions_keep_channels_last(self, cast_to_float):
        conv = nn.Conv2d(8, 8, 3).to(memory_format=torch.channels_last)
        x = torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last).requires_grad_()
        expected = F.conv2d(x.to(BF16), conv.weight.to(BF16), conv.bias.to(BF16))
        hmp.convert()
        result = conv(x)
        assert torch.equal(result, expected)
        assert result.is_contiguous(memory_format=torch.channels_last)
        result.float().sum().backward() if cast_to_float else result.sum().backward()
        assert x.grad.is_contiguous(memory_format=torch.channels_last)
        assert conv.weight.grad.stride() == conv.weight.stride()

    def test_attention(self):
        """Heads turned out of the embedding: bit for bit what casts by hand give."""
        x = torch.randn(2, 6, 16)
        layer = nn.Linear(16, 48)

        def attend(x, low):
            q, k, v = F.linear(low(x), low(layer.weight), low(layer.bias)).float().chunk(3, -1)
            q, k, v = (t.view(2, 6, 4, 4).transpose(1, 2) for t in (q, k, v))
            scores = (low(q) @ low(k.mT)).float().softmax(-1)
            return (low(scores) @ low(v)).transpose(1, 2).reshape(2, 6, 16)

        expected = attend(x, lambda t: t.to(BF16))
        hmp.convert()
        assert torch.equal(attend(x, lambda t: t), expected)
