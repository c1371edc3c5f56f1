"""Casts in traced code give the bits of eager: layouts that a matrix product copies, and steps of training."""

import copy

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn
from torch.compiler import config

import habana_mp._core as _core
from habana_mp import hmp

BACKENDS = [("eager", None), ("aot_eager", None), ("aot_eager", True)]


class Transposed(nn.Module):
    """A product casts such a batch to a contiguous one, so that torch adds the bias before it rounds (addmm)."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x):
        return self.linear(x.transpose(0, 1))


def in_force(front_end):
    return hmp.autocast("cpu") if front_end == "autocast" else hmp.convert() and torch.enable_grad()


@pytest.mark.parametrize("front_end", ["convert", "autocast"])
@pytest.mark.parametrize(("backend", "dynamic"), BACKENDS)
def test_a_linear_of_a_transposed_batch(front_end, backend, dynamic):
    model, x = Transposed(), torch.randn(5, 3, 8)
    compiled = torch.compile(model, backend=backend, dynamic=dynamic, fullgraph=True)
    with in_force(front_end):
        expected, found = model(x), compiled(x)
    assert expected.dtype == torch.bfloat16
    assert torch.equal(found, expected)
    assert found.stride() == expected.stride()


@pytest.mark.parametrize("front_end", ["convert", "autocast"])
@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_linear_of_a_transposed_batch(front_end, strict):
    model, x = Transposed(), torch.randn(5, 3, 8)
    with in_force(front_end):
        expected = model(x)
        program = torch.export.export(model, (x,), strict=strict).module()
        hmp.revert()
        assert torch.equal(program(x), expected)


@pytest.mark.parametrize("front_end", ["convert", "autocast"])
@pytest.mark.parametrize("batch_first", [True, False])
def test_three_steps_of_training(front_end, batch_first):
    """From the second step on the biases of attention are not zero, and adding them before or after rounding differs."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=batch_first)
    other, batches = copy.deepcopy(layer), torch.randn(3, 2, 6, 16)

    def trained(model, run):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for x in batches:
            optimizer.zero_grad()
            with in_force(front_end):
                y = run(x)
            F.mse_loss(y.float(), torch.zeros_like(x)).backward()
            optimizer.step()
        return [parameter.detach() for parameter in model.parameters()]

    compiled = torch.compile(other, backend="aot_eager", fullgraph=True)
    assert all(map(torch.equal, trained(layer, layer), trained(other, compiled)))


def test_caches_on_disk_hold_which_casts_traced_code_makes():
    hmp.convert()
    assert f"habana_mp:{_core.TRACED_CASTS}:" in config.cache_key_tag
