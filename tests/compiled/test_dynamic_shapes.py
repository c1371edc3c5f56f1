"""Programs whose sizes are symbols give the numbers of uncompiled code, for each size: torch.export with dynamic shapes, and compiled code."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp

OPS = ["linear", "conv1d", "conv2d", "addmm", "mm", "matmul", "bmm", "baddbmm"]
POLICIES = {
    "lower": hmp.Policy.from_ops(lower=[*OPS, "embedding"]),
    "weight_int8": hmp.Policy.from_ops(weight_int8=[*OPS, "embedding", "embedding_bag"]),
    "int8": hmp.Policy.from_ops(int8=OPS),
}


class Products(nn.Module):
    """Each op with a weight, of which some are smaller than the cache takes."""

    def __init__(self):
        super().__init__()

        def weight(*sizes):
            return nn.Parameter(torch.randn(sizes) / 8)

        self.small, self.large = weight(8, 64), weight(96, 64)
        self.signals, self.images = weight(12, 64, 3), weight(12, 2, 3, 3)
        self.matrix, self.batch, self.low = weight(64, 32), weight(2, 64, 32), nn.Parameter(weight(8, 64).bfloat16())
        self.table = weight(50, 24)

    def forward(self, x):
        rows, places = x[0], torch.arange(x.shape[1]) % 50
        return {
            "linear": F.linear(x, self.large),
            "small linear": F.linear(x, self.small),
            "linear of a low weight": F.linear(x, self.low),
            "linear of columns": F.linear(x.transpose(1, 2).contiguous().transpose(1, 2), self.large),
            "conv1d": F.conv1d(x.transpose(1, 2), self.signals, padding=1),
            "conv2d": F.conv2d(x.unsqueeze(0), self.images, padding=1),
            "addmm": torch.addmm(rows[:1, :32], rows, self.matrix, beta=0.5, alpha=2),
            "mm": rows @ self.matrix,
            "matmul": x @ self.matrix,
            "bmm": torch.bmm(x, self.batch),
            "baddbmm": torch.baddbmm(x[:, :, :32], x, self.batch),
            "embedding": F.embedding(places, self.table),
            "embedding_bag": F.embedding_bag(places.unsqueeze(0), self.table),
        }


def exported(model, x):
    return torch.export.export(model, (x,), dynamic_shapes=({1: torch.export.Dim.DYNAMIC},)).module()


# Inductor takes half a minute for this model, and no longer asks for the sizes of tensors.
HOW = {
    "export": exported,
    "compile(dynamic=True)": lambda model, _: torch.compile(model, dynamic=True, fullgraph=True, backend="aot_eager"),
    "compile": lambda model, _: torch.compile(model, fullgraph=True, backend="aot_eager"),
}


@pytest.mark.parametrize("title", POLICIES)
@pytest.mark.parametrize(
    ("how", "front_end"), [*((how, "convert") for how in HOW), ("export", "autocast"), ("compile", "autocast")]
)
def test_as_uncompiled(how, front_end, title):
    """convert in 8 bits raised "Cannot call numel() on tensor with symbolic sizes", and exported small and low weights without 8 bits. A
    bias that is no parameter was rounded.
    """
    model, policy = Products(), POLICIES[title]
    with torch.no_grad(), contextlib.ExitStack() as stack:
        if front_end == "autocast":
            stack.enter_context(hmp.autocast("cpu", policy=policy))
        else:
            hmp.convert(policy=policy)
            stack.callback(hmp.revert)
        call = HOW[how](model, torch.randn(2, 8, 64))
        for size in (8, 33, 9):
            x = torch.randn(2, size, 64)
            expected, found = model(x), call(x)
            assert [name for name, each in expected.items() if not torch.equal(found[name], each)] == []
