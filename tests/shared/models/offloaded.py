"""A model whose weights hmp.cache.offload takes, and where its memory lies."""

from pathlib import Path

import torch
from torch import nn

N = 256  # a weight is N x N: the smallest that is offloaded
X = torch.linspace(-1, 1, 2 * N).view(2, N)


def net(layers=3):
    return nn.Sequential(*(nn.Linear(N, N) for _ in range(layers)))


def bits(model):
    """All numbers of a model, as integers: NaN and -0 count too."""
    return {name: value.clone().view(torch.int32) for name, value in model.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def weights_of(model):
    return [p for p in model.parameters() if p.ndim == 2]


def is_in_file(tensor):
    """Whether the memory in the middle of a tensor is that of a file that has no name."""
    address = tensor.detach().data_ptr() + tensor.nbytes // 2
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(each, 16) for each in line.split()[0].split("-"))
        if begin <= address < end:
            return line.endswith("(deleted)")
    raise AssertionError(hex(address))


def all_in_file(model):
    return [is_in_file(p) for p in weights_of(model)]
