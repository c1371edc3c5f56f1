"""What ops in 8 bits did wrong once (D56): regions inside a conversion, calls of nothing, the memory of convolutions."""

import pytest
import torch
import torch.nn.functional as F
from int8_numbers import LISTS, bits, policy_of
from torch import nn

from habana_mp import hmp


@pytest.fixture(autouse=True)
def empty_cache():
    hmp.cache.clear()
    yield
    hmp.revert()
    hmp.cache.clear()


CALLS = {
    "linear": ("linear", (64, 96), lambda x, w: F.linear(x, w, torch.ones(64))),
    "@": ("matmul", (96, 64), lambda x, w: x @ w),
    "addmm": ("addmm", (96, 64), lambda x, w: torch.addmm(torch.ones(64), x, w)),
    "bmm": ("bmm", (1, 96, 64), lambda x, w: torch.bmm(x[None], w)),
    "conv1d": ("conv1d", (64, 8, 9), lambda x, w: F.conv1d(x, w)),  # noqa: PLW0108
    "embedding": ("embedding", (96, 64), lambda x, w: F.embedding(torch.arange(9), w)),
}


@pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])
@pytest.mark.parametrize("conversion", ["lower", "fp32", "weight_int8"])
@pytest.mark.parametrize("name", CALLS)
def test_a_region_in_a_conversion_rounds_the_weight_of_the_model(name, conversion, grad):
    """It was rounded to bfloat16 first, or stayed in it: convert had cast it."""
    op, sizes, call = CALLS[name]
    title = "weight_int8" if op == "embedding" else "int8"
    weight, x = nn.Parameter(torch.randn(sizes), requires_grad=False), torch.randn(8, 96)
    region = hmp.autocast("cpu", policy=policy_of(title, op))
    with torch.set_grad_enabled(grad):
        with region:
            expected = call(x, weight)
        hmp.convert(policy=policy_of(conversion, op))
        with region:
            found = call(x, weight)
    assert torch.equal(bits(found), bits(expected))
    assert hmp.cache.info().entries == 1


@pytest.mark.parametrize("front_end", ["convert", "autocast"])
@pytest.mark.parametrize(("images", "decision"), [(0, "lower"), (2, "int8")])
def test_a_convolution_of_no_images_is_one_of_lower(images, decision, front_end):
    """It ran so, and the report had it as int8."""
    layer, policy = nn.Conv2d(6, 10, 3), policy_of("int8", "conv2d")
    if front_end == "convert":
        hmp.convert(policy=policy)
    with torch.no_grad(), hmp.report() as report:
        if front_end == "convert":
            found = layer(torch.randn(images, 6, 9, 8))
        else:
            with hmp.autocast("cpu", policy=policy):
                found = layer(torch.randn(images, 6, 9, 8))
    assert (found.shape, found.dtype) == ((images, 10, 7, 6), torch.bfloat16)
    assert [row.decision for row in report.rows if row.op == "conv2d"] == [decision]


WIDE = {
    "1d": (nn.Conv1d(8, 8, 9, padding=4), (1, 8, 200_000)),
    "2d": (nn.Conv2d(8, 8, 3, padding=1), (2, 8, 300, 300)),
    "3d": (nn.Conv3d(4, 4, 3), (1, 4, 40, 40, 40)),
    "groups": (nn.Conv2d(8, 8, 3, padding=1, groups=4), (1, 8, 300, 300)),
}


@pytest.mark.parametrize("title", LISTS)
@pytest.mark.parametrize("name", WIDE)
def test_a_convolution_does_not_hold_all_of_its_windows(name, title):
    layer, sizes = WIDE[name]
    x, policy = torch.randn(sizes), policy_of(title, f"conv{len(sizes) - 2}d")
    with torch.no_grad(), hmp.autocast("cpu", policy=policy):
        with torch.profiler.profile(profile_memory=True) as profile:
            found = layer(x)
        # Of images alone, whose windows are in one block
        small = layer(x[..., :20])
    edge = 20 - layer.kernel_size[-1]
    assert torch.equal(found[..., :edge], small[..., :edge]) or title == "int8"
    largest = max(event.self_cpu_memory_usage for event in profile.events())
    assert largest < 4 * x.numel() + (6 << 20)


# Views of a parameter, by the op: the sizes of the parameter, the view, and the call.
VIEWS = {
    "mm": ("mm", (64, 96), torch.t, lambda x, w: torch.mm(x, w)),  # noqa: PLW0108 - called late
    "@": ("matmul", (64, 96), lambda w: w.T, lambda x, w: x @ w),
    "slice": ("linear", (128, 96), lambda w: w[:64], lambda x, w: F.linear(x, w)),  # noqa: PLW0108
    "chunk": ("linear", (128, 96), lambda w: w.chunk(2)[1], lambda x, w: F.linear(x, w)),  # noqa: PLW0108
    "one of three": ("addmm", (3, 64, 96), lambda w: w[1].t(), lambda x, w: torch.addmm(torch.ones(64), x, w)),
    "two of three": ("bmm", (3, 96, 64), lambda w: w[:2], lambda x, w: torch.bmm(torch.stack([x, x]), w)),
    "more dims": ("conv1d", (64, 8), lambda w: w[:, :, None], lambda x, w: F.conv1d(x.unflatten(1, (8, 12)), w)),
}


@pytest.mark.parametrize("title", ["weight_int8", "int8"])
@pytest.mark.parametrize("front_end", ["convert", "autocast"])
@pytest.mark.parametrize("frozen", [False, True], ids=["trained", "frozen"])
@pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_of_a_weight_is_one(name, grad, frozen, front_end, title):
    """That of a frozen one ran as lower, also without gradients."""
    op, sizes, view, call = VIEWS[name]
    weight, x = nn.Parameter(torch.randn(sizes), requires_grad=not frozen), torch.randn(8, 96)
    alone = nn.Parameter(view(weight).detach().clone(memory_format=torch.contiguous_format), requires_grad=False)
    policy = policy_of(title, op)
    if front_end == "convert":
        hmp.convert(policy=policy)
    region = hmp.autocast("cpu", policy=policy, enabled=front_end == "autocast")
    with torch.set_grad_enabled(grad), region, hmp.report() as report:
        found, expected = call(x, view(weight)), call(x, alone)
    rows = [(row.decision, row.calls) for row in report._data().rows if row.op == op]
    if grad and not frozen:
        assert rows == [("lower", 1), (title, 1)]
    else:
        assert rows == [(title, 2)]
        assert torch.equal(bits(found), bits(expected))


@pytest.mark.parametrize("trace", ["compile", "export"])
@pytest.mark.parametrize("frozen", [False, True], ids=["trained", "frozen"])
def test_a_view_in_traced_code(frozen, trace):
    """With the bits of uncompiled code."""

    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(3, 64, 96), requires_grad=not frozen)

        def forward(self, x):
            return F.linear(F.linear(x, self.w[0]), self.w[1].t()) @ self.w[2].T

    model, x = Parts(), torch.randn(8, 96)
    with torch.no_grad(), hmp.autocast("cpu", policy=hmp.Policy.from_ops(int8=["linear", "matmul"])):
        expected = model(x)
        traced = (
            torch.export.export(model, (x,)).module() if trace == "export" else torch.compile(model, fullgraph=True)
        )
        assert torch.equal(bits(traced(x)), bits(expected))
