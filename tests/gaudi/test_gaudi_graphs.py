"""torch.hpu.HPUGraph: what ran once runs again, casts and backward passes among it; and the helpers round it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from habana_mp import hmp
from habana_mp._hpu.graphs import CachedParams, HPUGraph, copy_to, graph, input_hash

BF16 = torch.bfloat16


def views(x):
    flat = x.view(-1)
    flat[0] = 7.0
    return flat[1:] + x.t().reshape(-1)[1:]


# function of a tensor of shape (4, 4) -> the results of a run again are those of the function
CALLS = {
    "one op": lambda x: x * 2,
    "several results": lambda x: torch.topk(x, 2),
    "a list of results": lambda x: torch.split(x, 2),
    "views and in place": views,
    "in place on a result": lambda x: (x + 1).mul_(3).relu_(),
    "a shape changed in place": lambda x: (x + 1).unsqueeze_(0).squeeze_(0).t_() * x,
    "constants": lambda x: x + torch.ones(4) * torch.arange(4),
    "linear": nn.Linear(4, 3),
    "a layer": nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0).eval(),
    "nothing of it": lambda x: torch.zeros(2),
}


def flat(result):
    return list(result) if isinstance(result, (tuple, list)) else [result]


@pytest.mark.parametrize("policy", [None, "hmp", "torch-cpu"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@torch.no_grad()
def test_a_run_again_is_that_of_the_new_input(call, policy):
    if policy:
        hmp.convert(policy=policy)
    static, other = torch.randn(4, 4), torch.randn(4, 4)
    recorded = HPUGraph()
    recorded.capture_begin()
    results = flat(call(static))
    recorded.capture_end()
    addresses = [each.data_ptr() for each in results]
    static.copy_(other)
    recorded.replay()
    for ours, expected in zip(results, flat(call(other)), strict=True):
        assert torch.equal(ours, expected)
        assert ours.dtype == expected.dtype
    assert [each.data_ptr() for each in results] == addresses


@pytest.mark.parametrize("policy", [None, "hmp"])
def test_a_training_step(policy):
    """As Gaudi's guide has it: forward, backward and step are recorded, and data is copied into the inputs."""
    batches = [(torch.randn(8, 4), torch.randn(8, 2)) for _ in range(4)]

    def train(*, recorded: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
        x, y = torch.zeros(8, 4), torch.zeros(8, 2)

        def step():
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()

        whole = HPUGraph()
        for number, (data, target) in enumerate(batches):
            x.copy_(data), y.copy_(target)
            if recorded and number:
                whole.replay()
            elif recorded:
                with graph(whole):
                    step()
            else:
                step()
        return [p.detach() for p in model.parameters()]

    if policy:
        hmp.convert(policy=policy)
    for ours, expected in zip(train(recorded=True), train(recorded=False), strict=True):
        assert torch.equal(ours, expected)


@torch.no_grad()
def test_a_run_again_inside_a_region_casts_nothing_anew():
    static = torch.randn(4, 4)
    recorded = HPUGraph()
    with graph(recorded):
        product = static @ static
    with hmp.autocast("cpu", policy="torch-cpu"):
        recorded.replay()
    assert product.dtype == torch.float32
    assert torch.equal(product, static @ static)


def test_random_numbers_are_new_ones():
    recorded = HPUGraph()
    with graph(recorded):
        x = torch.rand(8)
    before = x.clone()
    recorded.replay()
    assert not torch.equal(x, before)


def test_what_is_refused():
    recorded = HPUGraph()
    with pytest.raises(RuntimeError, match=r"^replay needs a graph that capture_begin and capture_end recorded$"):
        recorded.replay()
    with pytest.raises(RuntimeError, match=r"^capture_end without capture_begin on this thread$"):
        recorded.capture_end()
    recorded.capture_begin()
    with pytest.raises(RuntimeError, match=r"^capture_begin: a graph is recording already$"):
        HPUGraph().capture_begin()
    with pytest.raises(RuntimeError, match=r"^capture_end without capture_begin on this thread$"):
        HPUGraph().capture_end()
    with ThreadPoolExecutor() as pool, pytest.raises(RuntimeError, match=r"on this thread$"):
        pool.submit(recorded.capture_end).result()
    torch.ones(1)
    recorded.capture_end()
    recorded.replay()
    recorded.reset()
    with pytest.raises(RuntimeError, match=r"^replay needs"):
        recorded.replay()


@torch.no_grad()
def test_a_result_of_another_shape_is_refused():
    x = torch.tensor([1.0, 2.0, -1.0])
    recorded = HPUGraph()
    with graph(recorded):
        positive = x[x > 0]
    x.fill_(-1.0)
    with pytest.raises(RuntimeError, match=r"gives a tensor of shape \(0,.*; when it was recorded it was \(2,"):
        recorded.replay()
    assert positive.tolist() == [1.0, 2.0]


def test_a_recording_in_inference_mode_runs_again_outside():
    x = torch.ones(2)
    recorded = HPUGraph()
    with torch.inference_mode(), graph(recorded):
        y = x * 2
    x.fill_(3.0)
    recorded.replay()
    assert y.tolist() == [6.0, 6.0]


@pytest.mark.parametrize("region", [lambda: torch.autocast("cpu"), lambda: hmp.autocast("cpu", policy="hmp")])
@torch.no_grad()
def test_a_run_again_is_not_cast(region):
    x = torch.randn(4, 4)
    recorded = HPUGraph()
    with graph(recorded):
        y = x @ x
    x.copy_(torch.randn(4, 4))
    with region():
        recorded.replay()
    assert torch.equal(y, x @ x)


def test_an_error_ends_the_recording():
    recorded = HPUGraph()
    with pytest.raises(ValueError, match=r"^mine$"), graph(recorded):
        raise ValueError("mine")
    count = len(recorded._calls)
    torch.ones(1)
    assert len(recorded._calls) == count


def test_copy_to():
    dst = {"a": torch.zeros(2), "b": [torch.zeros(1), 5], "c": (torch.zeros(1, requires_grad=True),)}
    copy_to(dst, {"a": torch.ones(2), "b": [torch.ones(1), 6], "c": (torch.ones(1),)})
    assert (dst["a"].tolist(), dst["b"][0].item(), dst["b"][1], dst["c"][0].item()) == ([1, 1], 1, 5, 1)
    with pytest.raises(ValueError, match=r"copy_to: a dict of \['a'\] cannot take one of \['b'\]"):
        copy_to({"a": torch.zeros(1)}, {"b": torch.zeros(1)})
    with pytest.raises(ValueError, match="copy_to: 1 values cannot take 2"):
        copy_to([torch.zeros(1)], [torch.zeros(1)] * 2)
    with pytest.raises(ValueError, match=r"copy_to: a tensor of shape \(4,\) cannot take one of shape \(1,\)"):
        copy_to(torch.zeros(4), torch.zeros(1))
    for wrong in ([1], 5, torch.zeros(1)):
        with pytest.raises(ValueError, match=r"copy_to: a dict of \['a'\] cannot take"):
            copy_to({"a": torch.zeros(1)}, wrong)


def test_input_hash():
    same = input_hash([torch.zeros(2, 3), {"mask": torch.ones(1), "causal": True}])
    assert same == input_hash((torch.ones(2, 3), {"mask": torch.zeros(1), "causal": True}))
    assert same != input_hash([torch.zeros(3, 2), {"mask": torch.ones(1), "causal": True}])
    assert same != input_hash([torch.zeros(2, 3), {"mask": torch.ones(1), "causal": False}])
    assert same != input_hash([torch.zeros(2, 3, dtype=BF16), {"mask": torch.ones(1), "causal": True}])


def test_input_hash_of_a_set():
    shapes = [(2, 3), (4,), (4,), ()]
    same = input_hash({"names": {"causal", "mask"}, "tensors": {torch.zeros(shape) for shape in shapes}})
    assert same == input_hash({"names": {"mask", "causal"}, "tensors": frozenset(map(torch.ones, reversed(shapes)))})
    assert same != input_hash({"names": {"mask"}, "tensors": {torch.zeros(shape) for shape in shapes}})
    assert same != input_hash({"names": {"mask", "causal"}, "tensors": {torch.zeros(shape) for shape in {*shapes}}})
    assert input_hash({1, (2, frozenset({3}))}) == input_hash({(2, frozenset({3})), 1})
    assert input_hash({1, 2}) != input_hash([1, 2])


def test_cached_params():
    recorded = HPUGraph()
    cached = CachedParams([1], [2], recorded)
    assert (cached.graph_inputs, cached.graph_outputs, cached.graph) == ([1], [2], recorded)
