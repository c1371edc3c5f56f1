"""Products, convolutions and embeddings in 8 bits (D56): the numbers of docs/int8.md, by both front ends, with and without the weight cache."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from int8_numbers import LISTS, bits, few_bits, int8, policy_of, rounded, run
from torch import nn

from habana_mp import hmp

LOW = (torch.bfloat16, torch.float16)
SIZES = [(1, 64, 64), (3, 5, 7), (1, 4096, 65), (17, 130, 200), (33, 1, 1), (2, 513, 63), (128, 96, 256)]
PRODUCTS = {
    "linear": ("linear", lambda x, w, b: F.linear(x, w, b), False),  # noqa: PLW0108
    "linear, by keyword": ("linear", lambda x, w, b: F.linear(input=x, bias=b, weight=w), False),
    "linear of a batch": ("linear", lambda x, w, b: F.linear(x[None], w, b)[0], False),
    "addmm": ("addmm", lambda x, w, b: torch.addmm(b, x, w), True),
}


@pytest.mark.parametrize("low", LOW, ids=str)
@pytest.mark.parametrize("title", LISTS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name, sizes, title, low, front_end):
    op, call, turned = PRODUCTS[name]
    rows, inputs, outputs = sizes
    x = few_bits(rows, inputs)
    weight, bias = nn.Parameter(torch.randn(outputs, inputs)), nn.Parameter(torch.randn(outputs))
    own = nn.Parameter(weight.detach().t().contiguous()) if turned else weight
    found = run(front_end, policy_of(title, op, low=low), lambda: call(x, own, bias))
    assert found.dtype is low
    assert torch.equal(bits(found), bits(LISTS[title](x, weight, bias, low).detach()))


@pytest.mark.parametrize("title", LISTS)
@pytest.mark.parametrize(
    "call",
    [
        lambda x, w: torch.mm(x, w),  # noqa: PLW0108
        lambda x, w: torch.matmul(x, w),  # noqa: PLW0108
        lambda x, w: x @ w,
        lambda x, w: torch.matmul(x[0], w)[None],
    ],
    ids=["mm", "matmul", "@", "of a vector"],
)
def test_products_without_bias(call, title, front_end):
    x, weight = few_bits(1, 200), nn.Parameter(torch.randn(200, 70))
    policy = hmp.Policy.from_ops(**{title: ["mm", "matmul"]})
    found = run(front_end, policy, lambda: call(x, weight))
    assert torch.equal(bits(found), bits(LISTS[title](x, weight.t(), None, torch.bfloat16).detach()))


@pytest.mark.parametrize("title", LISTS)
def test_addmm_with_factors(title, front_end):
    x, weight, bias = few_bits(4, 96), nn.Parameter(torch.randn(96, 64)), torch.randn(4, 64)
    found = run(front_end, policy_of(title, "addmm"), lambda: torch.addmm(bias, x, weight, beta=0.5, alpha=2))
    plain = LISTS[title](x, weight.t(), None, torch.bfloat16)
    torch.testing.assert_close(found.float(), 2 * plain.float() + 0.5 * bias, rtol=1e-2, atol=1e-1)


CONVOLUTIONS = {
    "1d": (lambda: nn.Conv1d(6, 10, 3, stride=2, padding=1), (2, 6, 17)),
    "2d": (lambda: nn.Conv2d(6, 70, (3, 2), padding=(1, 0), dilation=(1, 2)), (2, 6, 9, 8)),
    "2d, channels last": (lambda: nn.Conv2d(6, 10, 3), (2, 6, 9, 8)),
    "2d, one place of the kernel, channels last": (lambda: nn.Conv2d(8, 10, 1, stride=2), (2, 8, 5, 6)),
    "2d, one channel, dilated": (lambda: nn.Conv2d(1, 10, (1, 4), dilation=2), (2, 1, 5, 9)),
    "1d, windows that overlap": (lambda: nn.Conv1d(4, 10, 3), (2, 4, 9)),
    "2d, one image": (lambda: nn.Conv2d(6, 10, 3), (6, 9, 8)),
    "2d, same": (lambda: nn.Conv2d(6, 10, (3, 4), padding="same"), (2, 6, 9, 8)),
    "2d, valid": (lambda: nn.Conv2d(6, 10, 3, padding="valid"), (2, 6, 9, 8)),
    "groups": (lambda: nn.Conv2d(8, 12, 3, groups=4), (2, 8, 6, 6)),
    "depthwise": (lambda: nn.Conv2d(70, 70, 3, groups=70, padding=1), (1, 70, 5, 5)),
    "3d": (lambda: nn.Conv3d(3, 5, 2), (1, 3, 4, 5, 6)),
    # Windows whose parts have whole fours of numbers, which are read as they lie; and others, with many numbers
    "1d, fours, dilated": (lambda: nn.Conv1d(64, 70, 3, stride=2, padding=2, dilation=2), (2, 64, 17)),
    "2d, fours, channels last": (lambda: nn.Conv2d(64, 10, 3, padding=1), (3, 64, 9, 8)),
    "2d, fours, stride and dilation": (lambda: nn.Conv2d(68, 70, (3, 2), 2, (2, 1), (1, 2)), (2, 68, 7, 8)),
    "2d, many, no fours": (lambda: nn.Conv2d(33, 10, 2), (2, 33, 5, 4)),
    "2d, fours, one image, same": (lambda: nn.Conv2d(64, 10, (3, 4), padding="same"), (64, 7, 9)),
    "2d, fours, one part": (lambda: nn.Conv2d(64, 10, 1, stride=2), (2, 64, 5, 6)),
    "2d, fours, groups": (lambda: nn.Conv2d(128, 140, 3, groups=2, padding=1), (2, 128, 4, 5)),
    "3d, fours": (lambda: nn.Conv3d(64, 5, 2, padding=1), (1, 64, 3, 2, 4)),
}


@pytest.mark.parametrize("title", LISTS)
@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.filterwarnings("ignore:Using padding='same'")  # torch's, of the reference
def test_convolutions(name, title, front_end):
    make, sizes = CONVOLUTIONS[name]
    layer, x = make().requires_grad_(False), few_bits(*sizes)
    if "last" in name:
        x = x.to(memory_format=torch.channels_last)
    found = run(front_end, policy_of(title, f"conv{layer.weight.dim() - 2}d"), lambda: layer(x))
    weights, scales = rounded(layer.weight.flatten(1))
    images = x.bfloat16() if x.dim() == layer.weight.dim() else x.bfloat16()[None]
    of_image = torch.ones(len(images))
    if title == "int8":
        images, of_image = rounded(images.flatten(1))
        images = images.reshape(x.shape if x.dim() == layer.weight.dim() else (1, *x.shape))
    exact = nn.functional.__dict__[f"conv{layer.weight.dim() - 2}d"](
        images.double(),
        weights.reshape(layer.weight.shape).double(),
        stride=layer.stride,
        padding=layer.padding,
        dilation=layer.dilation,
        groups=layer.groups,
    ).float()
    ones = (1,) * (layer.weight.dim() - 2)
    y = exact * of_image.reshape(-1, 1, *ones) * scales.reshape(-1, *ones) + layer.bias.reshape(-1, *ones)
    assert torch.equal(bits(found), bits(y.bfloat16().reshape(found.shape)))
    assert found.is_contiguous(memory_format=torch.channels_last if "last" in name else torch.contiguous_format)


def test_embedding(front_end):
    table, indices = nn.Embedding(100, 40), torch.tensor([[3, 99], [0, 3]])
    found = run(front_end, policy_of("weight_int8", "embedding"), lambda: table(indices))
    numbers, scales = rounded(table.weight.detach())
    assert torch.equal(found, (numbers.float() * scales[:, None])[indices].bfloat16())
    for wrong in (100, -1):
        with pytest.raises(IndexError, match="index out of range in self"):
            run(front_end, policy_of("weight_int8", "embedding"), lambda: table(torch.tensor(wrong)))  # noqa: B023


WEIGHTS = {
    "zeros": torch.zeros(64, 96),
    "a row of zeros": torch.cat([torch.zeros(1, 96), torch.randn(63, 96)]),
    "one NaN": torch.randn(64, 96).index_put((torch.tensor(5), torch.tensor(7)), torch.tensor(torch.nan)),
    "one infinity": torch.randn(64, 96).index_put((torch.tensor(5), torch.tensor(7)), torch.tensor(torch.inf)),
    "subnormal": torch.randn(64, 96) * 1e-40,
    "the largest": torch.full((64, 96), torch.finfo(torch.float32).max),
    "no inputs": torch.zeros(64, 0),
    "no outputs": torch.zeros(0, 96),
    "transposed": torch.randn(96, 64).t(),
    "expanded": torch.randn(64, 1).expand(64, 96),
}


@pytest.mark.parametrize("title", LISTS)
@pytest.mark.parametrize("name", WEIGHTS)
def test_weights(name, title, front_end):
    weight = nn.Parameter(WEIGHTS[name])
    x = few_bits(3, weight.shape[1])
    found = run(front_end, policy_of(title, "linear"), lambda: F.linear(x, weight))
    expected = LISTS[title](x, weight, None, torch.bfloat16).detach()
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("title", LISTS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_activations_that_are_not_finite(value, title, front_end):
    x, weight = few_bits(4, 96), nn.Parameter(torch.randn(64, 96))
    x[2, 5] = value
    found = run(front_end, policy_of(title, "linear"), lambda: F.linear(x, weight))
    assert not found[2].isfinite().any()
    assert found[[0, 1, 3]].isfinite().all()


@pytest.mark.parametrize("low", LOW, ids=str)
@pytest.mark.parametrize("rows", [1, 33])
def test_subnormal_activations_count(rows, low, front_end):
    x = few_bits(rows, 64) * torch.finfo(low).smallest_normal / 8
    assert (x.to(low) == x).all()
    assert (x.abs() < torch.finfo(low).smallest_normal).all()
    weight = nn.Parameter(torch.randn(65, 64) * 2.0**60)
    found = run(front_end, policy_of("weight_int8", "linear", low=low), lambda: F.linear(x, weight))
    assert found.count_nonzero() > 0
    assert torch.equal(bits(found), bits(LISTS["weight_int8"](x, weight, None, low).detach()))


FLOATING = {
    "linear": (lambda: nn.Linear(70, 33), lambda: torch.randn(5, 70)),
    "linear, transposed": (lambda: nn.Linear(70, 33), lambda: torch.randn(4, 70, 5).mT),
    "linear, beyond the low dtype": (
        lambda: nn.Linear(70, 33),
        lambda: torch.randn(3, 70).index_fill(0, torch.tensor(1), 3.4e38),
    ),
    "conv2d": (lambda: nn.Conv2d(6, 10, 3), lambda: torch.randn(2, 6, 9, 7)),
    "conv2d, channels last": (
        lambda: nn.Conv2d(6, 10, 3),
        lambda: torch.randn(2, 6, 9, 7).to(memory_format=torch.channels_last),
    ),
    "conv2d, of a part": (lambda: nn.Conv2d(6, 10, 3), lambda: torch.randn(4, 6, 9, 7)[::2, :, :, 1:]),
    "conv2d, images last": (lambda: nn.Conv2d(6, 10, 3), lambda: torch.randn(6, 9, 7, 2).movedim(-1, 0)),
}


@pytest.mark.parametrize("low", LOW, ids=str)
@pytest.mark.parametrize("name", FLOATING)
def test_float32_activations_are_cast_first(name, low, front_end):
    """Whether the kernel casts them, or a cast that a report sees, or the caller."""
    make, example = FLOATING[name]
    layer, x = make().requires_grad_(False), example()
    policy = policy_of("int8", "linear", "conv2d", low=low)
    found = run(front_end, policy, lambda: layer(x))
    assert torch.equal(bits(found), bits(run(front_end, policy, lambda: layer(x.to(low)))))
    with hmp.report() as report:
        assert torch.equal(bits(found), bits(run(front_end, policy, lambda: layer(x))))
    assert report.casts() > 0


@pytest.mark.parametrize("title", LISTS)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_does_not_depend_on_others(title, threads, front_end):
    x, weight, bias = torch.randn(300, 1000), nn.Parameter(torch.randn(130, 1000)), torch.randn(130)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        policy = policy_of(title, "linear")
        whole = run(front_end, policy, lambda: F.linear(x, weight, bias))
        for rows in (1, 5, 64):
            assert torch.equal(run(front_end, policy, lambda: F.linear(x[:rows], weight, bias)), whole[:rows])  # noqa: B023
    finally:
        torch.set_num_threads(before)


class TestWithoutAWeightOfItsOwn:
    """Calls that have no weight, or train it, run as those of the lower list."""

    def test_scores(self, front_end):
        x, y = torch.randn(8, 96), torch.randn(96, 8)
        found = run(front_end, policy_of("int8", "mm"), lambda: torch.mm(x, y))
        assert torch.equal(found, x.bfloat16() @ y.bfloat16())

    @pytest.mark.parametrize("title", LISTS)
    def test_training(self, title, front_end):
        layer, x = nn.Linear(96, 64), torch.randn(8, 96)
        found = []
        for each in (policy_of(title, "linear"), policy_of("lower", "linear")):
            layer.zero_grad()
            if front_end == "autocast":
                with hmp.autocast("cpu", policy=each):
                    y = layer(x)
            else:
                hmp.convert(policy=each)
                y = layer(x)
                hmp.revert()
            y.sum().backward()
            found.append((y, layer.weight.grad, layer.bias.grad))
        for own, lower in zip(*found, strict=True):
            assert torch.equal(own, lower)


@pytest.mark.parametrize("title", LISTS)
def test_held_in_bfloat16(title, front_end):
    layer, x = nn.Linear(96, 64).bfloat16(), few_bits(8, 96).bfloat16()
    found = run(front_end, policy_of(title, "linear"), lambda: layer(x))
    assert torch.equal(found, LISTS[title](x, layer.weight, layer.bias, torch.bfloat16).detach())


class TestCache:
    def test_counts(self):
        layer, x = nn.Linear(96, 64), torch.randn(8, 96)
        with torch.no_grad(), hmp.autocast("cpu", policy=policy_of("int8", "linear")):
            layer(x)
            layer(x)
        info = hmp.cache.info()
        assert (info.entries, info.hits, info.misses) == (1, 1, 1)
        assert info.bytes < 96 * 64 * 1.5

    def test_changes_are_seen(self):
        layer, x = nn.Linear(96, 64), few_bits(8, 96)
        policy = policy_of("int8", "linear")
        with torch.no_grad(), hmp.autocast("cpu", policy=policy):
            layer(x)
            layer.weight.mul_(2)
            layer.weight[3] = 5
            found = layer(x)
        assert torch.equal(found, int8(x, layer.weight, layer.bias, torch.bfloat16).detach())

    def test_without_the_cache(self):
        layer, x = nn.Linear(96, 64), few_bits(8, 96)
        with torch.no_grad(), hmp.autocast("cpu", policy=policy_of("int8", "linear"), cache_enabled=False):
            found = layer(x)
        assert hmp.cache.info().entries == 0
        assert torch.equal(found, int8(x, layer.weight, layer.bias, torch.bfloat16).detach())


# The op, the sizes of its weight, and a call with 8 x 96 numbers and a bias of 64.
CALLS = {
    "linear": ("linear", (64, 96), lambda x, w, b: F.linear(x, w, b)),  # noqa: PLW0108
    "mm": ("mm", (96, 64), lambda x, w, _: x.mm(w)),
    "matmul": ("matmul", (96, 64), lambda x, w, _: x[None] @ w),
    "addmm": ("addmm", (96, 64), lambda x, w, b: torch.addmm(b, x, w)),
    "bmm": ("bmm", (2, 96, 64), lambda x, w, _: torch.bmm(torch.stack([x, x]), w)),
    "baddbmm": ("baddbmm", (1, 96, 64), lambda x, w, b: torch.baddbmm(b, x[None], w)),
    "conv1d": ("conv1d", (64, 8, 3), lambda x, w, b: F.conv1d(x[None], w, b)),
    "conv2d": ("conv2d", (64, 4, 3, 3), lambda x, w, b: F.conv2d(x.reshape(2, 4, 8, 12), w, b)),
}
TABLES = {"embedding": ("embedding", (100, 40), lambda x, w, _: F.embedding(torch.arange(8), w))}
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


def lists_and_calls(of_tables=()):
    """Those of tables in ``weight_int8`` alone."""
    names = {"weight_int8": [*CALLS, *of_tables], "int8": [*CALLS]}
    every = {**CALLS, **TABLES}
    return [pytest.param(title, *every[name], id=f"{title}-{name}") for title in LISTS for name in names[title]]


def frozen(numbers):
    return nn.Parameter(numbers, requires_grad=False)


def rows_of(report, op):
    return [(row.decision, row.calls, row.casts) for row in report.rows if row.op == op]


class TestWeightsInOtherDtypes:
    """What runs as without a policy, and what as in the lower list. None has a copy in 8 bits."""

    @pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.complex128], ids=str)
    @pytest.mark.parametrize(("title", "op", "sizes", "call"), lists_and_calls(TABLES))
    def test_float64_and_complex_are_left_alone(self, title, op, sizes, call, dtype, front_end):
        weight, x, bias = (
            frozen(torch.randn(sizes, dtype=dtype)),
            torch.randn(8, 96, dtype=dtype),
            torch.randn(64).to(dtype),
        )
        expected = call(x, weight, bias)
        with hmp.report() as report:
            found = run(front_end, policy_of(title, op), lambda: call(x, weight, bias))
        assert found.dtype is dtype
        assert torch.equal(found, expected)
        assert rows_of(report, op) == [("left alone", 2, 0)]
        assert hmp.cache.info().entries == 0

    @pytest.mark.parametrize("title", LISTS)
    def test_a_conjugate_is_left_alone(self, title, front_end):
        weight = frozen(torch.randn(64, 96, dtype=torch.complex64).conj())
        x = torch.randn(8, 96, dtype=torch.complex64).conj()
        expected = F.linear(x, weight)
        assert torch.equal(run(front_end, policy_of(title, "linear"), lambda: F.linear(x, weight)), expected)

    @pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
    @pytest.mark.parametrize(
        "dtypes",
        [
            (torch.float32, torch.complex64, torch.float32),
            (torch.complex64, torch.float32, torch.float32),
            (torch.float32, torch.float32, torch.complex64),
            (torch.complex64, torch.complex64, torch.float32),
            (torch.complex64, torch.complex128, torch.complex64),
            (torch.complex32, torch.complex32, torch.complex32),
            (torch.float64, torch.float32, torch.float32),
            (torch.float32, torch.float32, torch.float64),
        ],
        ids=lambda dtypes: ", ".join(str(each).partition(".")[2] for each in dtypes),
    )
    @pytest.mark.parametrize("title", LISTS)
    def test_dtypes_that_torch_refuses(self, title, dtypes, front_end):
        """With the error that it has without a policy."""
        of_x, of_weight, of_bias = dtypes
        weight = frozen(torch.randn(64, 96).to(of_weight))
        x, bias = torch.randn(8, 96).to(of_x), torch.randn(64).to(of_bias)
        with pytest.raises(RuntimeError) as own:
            F.linear(x, weight, bias)
        with pytest.raises(RuntimeError) as found:
            run(front_end, policy_of(title, "linear"), lambda: F.linear(x, weight, bias))
        assert str(found.value) == str(own.value)

    @pytest.mark.parametrize(("title", "op", "sizes", "call"), lists_and_calls())
    def test_float8_runs_as_lower(self, title, op, sizes, call, front_end):
        weight, x, bias = frozen(torch.randn(sizes).to(FLOAT8[0])), torch.randn(8, 96), torch.randn(64)
        expected = call(*(each.to(torch.bfloat16) for each in (x, weight, bias)))
        with hmp.report() as report:
            found = run(front_end, policy_of(title, op), lambda: call(x, weight, bias))
        assert torch.equal(found, expected)
        with_bias = op in ("linear", "addmm", "baddbmm", "conv1d", "conv2d")
        assert rows_of(report, op) == [("lower", 2, 2 * (3 if with_bias else 2))]
        assert hmp.cache.info().entries == 0

    @pytest.mark.parametrize("dtype", FLOAT8, ids=str)
    @pytest.mark.parametrize("of_x", [torch.float32, torch.bfloat16, FLOAT8[0]], ids=str)
    @pytest.mark.parametrize("title", LISTS)
    def test_formats_of_float8(self, title, of_x, dtype, front_end):
        weight, x = frozen(torch.randn(64, 96).to(dtype)), torch.randn(8, 96).to(of_x)
        found = run(front_end, policy_of(title, "linear"), lambda: F.linear(x, weight))
        assert torch.equal(found, F.linear(x.to(torch.bfloat16), weight.to(torch.bfloat16)))

    def test_a_table_in_float8_is_left_alone(self, front_end):
        """It stays in its memory (D49)."""
        weight, indices = frozen(torch.randn(100, 40).to(FLOAT8[0])), torch.tensor([[3, 99], [0, 3]])
        with torch.no_grad(), hmp.report() as report:
            if front_end == "autocast":
                with hmp.autocast("cpu", policy=policy_of("weight_int8", "embedding")):
                    found = F.embedding(indices, weight)
            else:
                hmp.convert(policy=policy_of("weight_int8", "embedding"))
                found = F.embedding(indices, weight)
        assert found.dtype is FLOAT8[0]
        assert torch.equal(found.view(torch.uint8), weight.view(torch.uint8)[indices])
        assert rows_of(report, "embedding") == [("left alone", 1, 0)]


class TestOtherTensors:
    @pytest.mark.parametrize("title", LISTS)
    def test_vmap(self, title):
        """Rounded, and multiplied by torch in the low dtype."""
        layer, x = nn.Linear(96, 64), few_bits(3, 8, 96)
        with torch.no_grad(), hmp.autocast("cpu", policy=policy_of(title, "linear")):
            found = torch.func.vmap(layer)(x)
            expected = torch.stack([layer(each) for each in x])
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=5e-2)
        with torch.no_grad(), hmp.autocast("cpu", policy=policy_of("lower", "linear")):
            assert not torch.equal(found, torch.func.vmap(layer)(x))

    @pytest.mark.parametrize("title", LISTS)
    @pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
    def test_meta(self, title, grad, front_end):
        """As under the lower list: convert casts there, a region does not, as in torch."""
        layer, x = nn.Linear(96, 64, device="meta"), torch.randn(8, 96, device="meta")
        policy = policy_of(title, "linear")
        if front_end == "convert":
            hmp.convert(policy=policy)
        region = hmp.autocast("cpu", policy=policy) if front_end == "autocast" else contextlib.nullcontext()
        with torch.set_grad_enabled(grad), region:
            found = layer(x)
        assert (found.shape, found.dtype) == ((8, 64), torch.bfloat16 if front_end == "convert" else torch.float32)

    @pytest.mark.parametrize("title", LISTS)
    @pytest.mark.parametrize("dtype", [torch.float16, torch.float8_e4m3fn], ids=str)
    def test_inputs_in_other_dtypes(self, title, dtype, front_end):
        layer, x = nn.Linear(96, 64), few_bits(8, 96).to(dtype)
        found = run(front_end, policy_of(title, "linear"), lambda: layer(x))
        assert torch.equal(found, LISTS[title](x.float(), layer.weight, layer.bias, torch.bfloat16).detach())

    @pytest.mark.parametrize("title", LISTS)
    @pytest.mark.parametrize("dtype", [torch.float16, *FLOAT8], ids=str)
    def test_a_bias_in_another_dtype(self, title, dtype, front_end):
        """Its numbers as they are, in float32."""
        weight, x, bias = frozen(torch.randn(64, 96)), few_bits(8, 96), torch.randn(64).to(dtype)
        found = run(front_end, policy_of(title, "linear"), lambda: F.linear(x, weight, bias))
        assert torch.equal(found, LISTS[title](x, weight, bias, torch.bfloat16))

    @pytest.mark.parametrize("title", LISTS)
    @pytest.mark.parametrize("which", ["input", "weight"])
    def test_a_negative_bit(self, title, which, front_end):
        """Memory whose numbers count with the other sign: rounded, and multiplied by torch in the low dtype."""
        x, weight, bias = few_bits(8, 96), torch.randn(64, 96), torch.randn(64)
        negative = {name: torch.complex(each, -each).conj().imag for name, each in (("input", x), ("weight", weight))}
        held = {"input": x, "weight": weight, which: negative[which]}
        assert held[which].is_neg()
        (numbers, scales), own = rounded(weight), frozen(held["weight"])
        left = x
        if title == "int8":
            of_x, scales_of_x = rounded(x)
            left = of_x.float() * scales_of_x[:, None]
        expected = F.linear(*(each.to(torch.bfloat16) for each in (left, numbers.float() * scales[:, None], bias)))
        found = run(front_end, policy_of(title, "linear"), lambda: F.linear(held["input"], own, bias))
        assert torch.equal(found, expected)

    @pytest.mark.parametrize("freed", [False, True], ids=["shrunk", "freed"])
    def test_a_weight_whose_memory_is_not_there(self, freed, front_end):
        """As FSDP leaves weights that it has sharded again."""
        weight = nn.Parameter(torch.randn(32, 48), requires_grad=False)
        weight.untyped_storage().resize_(0 if freed else 4 * 48)
        with pytest.raises(RuntimeError, match="its shape needs 6144 bytes of storage"):
            run(front_end, policy_of("int8", "linear"), lambda: F.linear(torch.randn(8, 48), weight))

    @pytest.mark.parametrize(
        "call",
        [
            lambda x, w: torch.mm(x[0], w),
            lambda x, w: torch.mm(x[None], w),
            lambda x, w: torch.addmm(torch.ones(64), x[None], w),
            lambda x, w: torch.addmm(torch.ones(8, 65), x, w),
            lambda x, w: torch.addmm(torch.ones(2, 8, 64), x, w),
            lambda x, w: torch.addmm(torch.ones(9, 64), x[:1], w),
        ],
        ids=["mm of a vector", "mm of a batch", "addmm of a batch", "a wider bias", "biases", "more rows of bias"],
    )
    def test_calls_that_torch_refuses(self, call, front_end):
        weight, x = nn.Parameter(torch.randn(96, 64)), torch.randn(8, 96)
        with pytest.raises(RuntimeError, match=r"expand|matri[cx]|dimension|2D"):
            run(front_end, hmp.Policy.from_ops(int8=["mm", "addmm"]), lambda: call(x, weight))

    @pytest.mark.parametrize("sizes", [(8, 95), (95,), ()], ids=str)
    def test_sizes_that_do_not_fit(self, sizes, front_end):
        layer = nn.Linear(96, 64)
        with pytest.raises(RuntimeError, match=r"shapes cannot be multiplied|size mismatch|at least 1D|both arguments"):
            run(front_end, policy_of("int8", "linear"), lambda: layer(torch.randn(sizes)))

    @pytest.mark.filterwarnings("ignore:Sparse CSR tensor support", "ignore:The PyTorch API of nested tensors")
    @pytest.mark.parametrize(
        ("op", "make"),
        [
            ("mm", lambda x: x.to_sparse()),
            ("mm", lambda x: x.to_sparse_csr()),
            ("linear", lambda x: torch.nested.nested_tensor([x, x])),
            ("linear", lambda x: x.to_mkldnn()),
        ],
        ids=["sparse", "CSR", "nested", "oneDNN"],
    )
    def test_inputs_in_other_layouts_run_as_lower(self, op, make, front_end):
        weight, x = frozen(torch.randn((96, 64) if op == "mm" else (64, 96))), make(few_bits(8, 96))
        call = {"mm": lambda: torch.mm(x, weight), "linear": lambda: F.linear(x, weight)}[op]
        found = []
        for title in ("lower", "int8"):
            with torch.no_grad():
                if front_end == "autocast":
                    with hmp.autocast("cpu", policy=policy_of(title, op)):
                        found.append(call())
                else:
                    hmp.convert(policy=policy_of(title, op))
                    found.append(call())
                    hmp.revert()
        lower, own = (each.to_padded_tensor(0.0) if each.is_nested else each.to_dense() for each in found)
        assert torch.equal(own, lower)

    @pytest.mark.parametrize("title", LISTS)
    def test_a_bias_with_a_negative_bit(self, title, front_end):
        weight, x, bias = frozen(torch.randn(64, 96)), few_bits(8, 96), torch.randn(64)
        negative = torch.complex(-bias, -bias).conj().imag
        found = run(front_end, policy_of(title, "linear"), lambda: F.linear(x, weight, negative))
        assert not torch.equal(found, F.linear(x.bfloat16(), weight.bfloat16(), bias.bfloat16()))
        expected = LISTS[title](x, weight, bias, torch.bfloat16).float()
        assert (found.float() - expected).norm() < 2**-7 * expected.norm()

    @pytest.mark.parametrize("dtypes", [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)], ids=str)
    @pytest.mark.parametrize("title", LISTS)
    def test_vmap_of_other_low_dtypes(self, title, dtypes):
        """No number is rounded to bfloat16 where the low dtype is float16."""
        x, weight = torch.randn(1, 8, 96).to(dtypes[0]), frozen(torch.randn(64, 96).to(dtypes[1]))
        with torch.no_grad(), hmp.autocast("cpu", policy=policy_of(title, "linear", low=torch.float16)):
            found = torch.func.vmap(lambda x: F.linear(x, weight))(x)[0].float()
        expected = LISTS[title](x[0], weight, None, torch.float16).float()
        assert (found - expected).norm() < 6e-4 * expected.norm()
