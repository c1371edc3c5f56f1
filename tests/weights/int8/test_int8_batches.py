"""Batches of matrices and bags of embeddings in 8 bits (D56): the numbers of docs/int8.md, by both front ends."""

import pytest
import torch
import torch.nn.functional as F
from int8_numbers import LISTS, bits, few_bits, policy_of, rounded, run
from torch import nn

from habana_mp import hmp

BATCHES = {
    "bmm": ("bmm", lambda x, w, b: torch.bmm(x, w), lambda b: None),
    "baddbmm": ("baddbmm", lambda x, w, b: torch.baddbmm(b, x, w), lambda b: b),
    "baddbmm with factors": ("baddbmm", lambda x, w, b: torch.baddbmm(b, x, w, beta=0.5, alpha=2), lambda b: b / 4),
    "one bias for all": ("baddbmm", lambda x, w, b: torch.baddbmm(b[0, 0], x, w), lambda b: b[0, 0].expand(3, 1, 70)),
}


@pytest.mark.parametrize("title", LISTS)
@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("threads", [1, 2])
def test_batches_of_matrices(threads, name, title, front_end):
    """Experts of a model: a scale for each output of each matrix."""
    op, call, bias_of = BATCHES[name]
    x, bias = few_bits(3, 5, 96), few_bits(3, 5, 70)
    weight = nn.Parameter(torch.randn(3, 96, 70) * torch.tensor([1, 1e-3, 1e3]).reshape(3, 1, 1))
    own, factor = bias_of(bias), 2 if "factors" in name else 1
    expected = [
        factor * LISTS[title](x[i], weight[i].t(), None if own is None else own[i], torch.float32).detach()
        for i in range(3)
    ]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = run(front_end, policy_of(title, op), lambda: call(x, weight, bias))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(bits(found), bits(torch.stack(expected).bfloat16()))


BAGS = {
    "sum": {"mode": "sum"},
    "mean": {},
    "max": {"mode": "max"},
    "weights of samples": {"mode": "sum", "per_sample_weights": torch.randn(5)},
    "padding": {"padding_idx": 3},
    "padding that is not there": {"padding_idx": 7},
    "last offset": {"offsets": torch.tensor([0, 2, 2, 5]), "include_last_offset": True},
}


@pytest.mark.parametrize("name", BAGS)
def test_embedding_bag(name, front_end):
    """What torch makes of the rows of an embedding."""
    weight, indices = nn.Parameter(torch.randn(100, 40)), torch.tensor([3, 99, 0, 3, 5])
    options = {"offsets": torch.tensor([0, 2, 2]), **BAGS[name]}
    found = run(
        front_end, policy_of("weight_int8", "embedding_bag"), lambda: F.embedding_bag(indices, weight, **options)
    )
    numbers, scales = rounded(weight.detach())
    low = {k: v.bfloat16() if v is not None and k == "per_sample_weights" else v for k, v in options.items()}
    assert torch.equal(found, F.embedding_bag(indices, (numbers.float() * scales[:, None]).bfloat16(), **low))
    with pytest.raises(IndexError, match="index out of range in self"):
        run(
            front_end,
            policy_of("weight_int8", "embedding_bag"),
            lambda: F.embedding_bag(indices + 1, weight, **options),
        )


def test_places_of_the_largest():
    columns = [torch.randperm(100).float() - 50 for _ in range(40)]  # no two are alike when they are rounded
    weight, indices = nn.Parameter(torch.stack(columns, 1)), torch.tensor([3, 99, 0, 3, 5])
    call = (indices, torch.tensor([0, 2]), False, 2)
    with torch.no_grad(), hmp.autocast("cpu", policy=policy_of("weight_int8", "embedding_bag")):
        found = torch.embedding_bag(weight, *call)
    assert torch.equal(found[3], torch.embedding_bag(weight.detach(), *call)[3])
