"""Compiled code has the numbers of uncompiled code where lists have ops in 8 bits (D55, D56)."""

import pytest
import torch
from torch import nn

from habana_mp import hmp

MODELS = {
    "linear": (lambda: nn.Sequential(nn.Linear(96, 128), nn.GELU(), nn.Linear(128, 64)), (8, 96)),
    "small linear": (lambda: nn.Linear(8, 4), (3, 8)),
    "batch": (lambda: nn.Sequential(nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 64)), (2, 5, 96)),
    "conv": (lambda: nn.Sequential(nn.Conv2d(6, 70, 3, padding=1), nn.ReLU(), nn.Conv2d(70, 8, 1)), (2, 6, 9, 8)),
}


@pytest.mark.parametrize("front_end", ["convert", "autocast"])
@pytest.mark.parametrize("title", ["weight_int8", "int8"])
@pytest.mark.parametrize("name", MODELS)
def test_as_uncompiled(name, title, front_end):
    make, sizes = MODELS[name]
    model, x = make().eval(), torch.randn(sizes)
    policy = hmp.Policy.from_ops(**{title: ["linear", "conv2d"]})
    compiled = torch.compile(model, fullgraph=True)
    with torch.no_grad():
        if front_end == "autocast":
            with hmp.autocast("cpu", policy=policy):
                expected, found = model(x), compiled(x)
        else:
            hmp.convert(policy=policy)
            expected, found = model(x), compiled(x)
            hmp.revert()
        assert torch.equal(found, expected)
        assert not torch.equal(found.float(), model(x))


def test_with_a_graph_it_runs_as_lower():
    """docs/int8.md, Limits."""
    model = nn.Linear(96, 64).requires_grad_(False)
    x = torch.randn(8, 96, requires_grad=True)
    grads = []
    for run, title in ((model, "lower"), (torch.compile(model), "weight_int8")):
        x.grad = None
        with hmp.autocast("cpu", policy=hmp.Policy.from_ops(**{title: ["linear"]})):
            y = run(x)
        y.float().square().sum().backward()
        grads.append((y, x.grad))
    for one, other in zip(*grads, strict=True):
        assert torch.equal(one, other)
