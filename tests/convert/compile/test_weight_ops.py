"""Our ops in traced code, ``torch.ops.habana_mp.*``: what compilers assume of an op holds, for arguments that lie in any way in memory."""

from __future__ import annotations

import contextlib
import itertools

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from habana_mp import hmp

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of Inductor
BF16, FP16 = torch.bfloat16, torch.float16
OURS = {"int8": "", "cached": True}
R = torch.randn


@pytest.fixture(autouse=True)
def _revert():
    torch._dynamo.reset()
    yield
    hmp.revert()


def transposed(kind, dims):
    """The arguments of convNd and conv_transposeNd: of few pixels, of one, of groups, of one channel."""
    for images, outputs, groups, kernel in ((7, 32, 1, 3), (1, 24, 1, 1), (4, 16, 4, 3)):
        inputs = 16
        pair = (inputs, outputs // groups) if kind == "conv_transpose" else (outputs, inputs // groups)
        yield (
            (R(2, inputs, *[images] * dims), R(*pair, *[kernel] * dims), R(outputs)),
            {"stride": [1] * dims, "padding": [kernel // 2] * dims, "groups": groups},
        )


# By name: the tensors of some calls, and what else is given.
CALLS = {
    "linear": [
        ((R(4, 64), R(80, 64), R(80)), {}),
        ((R(2, 3, 64), R(80, 64), R(80)), {}),
        ((R(2, 3, 64), R(80, 64)), {}),
    ],
    "matmul": [((R(4, 64), R(64, 80)), {}), ((R(2, 3, 64), R(64, 80)), {}), ((R(80, 64), R(2, 64, 7)), {})],
    "mm": [((R(4, 64), R(64, 80)), {})],
    "bmm": [((R(3, 4, 64), R(3, 64, 80)), {})],
    "addmm": [((R(80), R(4, 64), R(64, 80)), {}), ((R(4, 80), R(4, 64), R(64, 80)), {"beta": 0.5, "alpha": 2})],
    "baddbmm": [((R(3, 4, 80), R(3, 4, 64), R(3, 64, 80)), {})],
    **{f"{kind}{dims}d": [*transposed(kind, dims)] for kind in ("conv", "conv_transpose") for dims in (1, 2, 3)},
}


def channels_last(tensor):
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if tensor.dim() not in formats:  # the same for signals, and matrices column after column
        return tensor.transpose(-1, -2).contiguous().transpose(-1, -2) if tensor.dim() > 1 else tensor
    return torch.empty_like(tensor, memory_format=formats[tensor.dim()]).copy_(tensor)


LAYOUTS = {
    "contiguous": torch.Tensor.contiguous,
    "channels-last": channels_last,
    "strided": lambda tensor: torch.stack([tensor, tensor], -1)[..., 0],
    "expanded": lambda tensor: tensor[:1].expand(tensor.shape),
    "reversed": lambda tensor: (
        tensor.permute(*range(tensor.dim())[::-1]).contiguous().permute(*range(tensor.dim())[::-1])
    ),
}
PAIRS = [*itertools.product(LAYOUTS, LAYOUTS)]


def laid_out(name, tensors, first, second):
    """The input in the first layout and the weight in the second."""
    places = (1, 2) if name in ("addmm", "baddbmm") else (0, 1)
    changed = list(tensors)
    for place, layout in zip(places, (first, second), strict=True):
        changed[place] = LAYOUTS[layout](changed[place])
    return changed


def test_the_table_has_every_op():
    found = {
        name.partition("::")[2] for name in torch._C._dispatch_get_all_op_names() if name.startswith("habana_mp::")
    }
    assert found == {*CALLS, "dequantized"}


def test_our_arguments_have_no_defaults():
    """Inductor's cache on disk knows a graph by its text, where defaults are not. After an op got an argument more, the C++ wrapper of a
    region, kept from before, called it with one too few.
    """
    for name in CALLS:
        for argument in getattr(torch.ops.habana_mp, name).default._schema.arguments:
            assert not (argument.name in {"weight_dtype", *OURS} and argument.has_default_value()), name


@pytest.mark.parametrize(
    ("sizes", "turned"), [((6, 8), False), ((6, 8), True), ((2, 6, 8), True), ((6, 2, 3, 3), False)]
)
def test_strides_of_dequantized_weights(sizes, turned):
    op, given = torch.ops.habana_mp.dequantized, {"dtype": BF16, "turned": turned, "cached": False}
    with FakeTensorMode() as mode:
        fake = op(mode.from_tensor(R(sizes)), **given)
    found = op(R(sizes), **given)
    assert (found.shape, found.stride(), found.dtype) == (fake.shape, fake.stride(), fake.dtype)


@pytest.mark.parametrize("layouts", PAIRS, ids="-".join)
@pytest.mark.parametrize("name", CALLS)
def test_strides_are_those_that_compilers_expect(name, layouts):
    """Before, torch.compile raised AssertionError for convolutions with channels last ("expected size 32==32, stride 1==196")."""
    op = getattr(torch.ops.habana_mp, name).default
    for tensors, named in CALLS[name]:
        for dtype, low, mode in itertools.product((BF16, FP16), (False, True), (torch.no_grad, torch.enable_grad)):
            given = laid_out(name, tensors, *layouts)
            if low:
                given[-2] = given[-2].to(dtype)
            with FakeTensorMode() as fakes, mode():
                expected = op(*map(fakes.from_tensor, given), **named, weight_dtype=dtype, **OURS)
            with mode():
                result = op(*given, **named, weight_dtype=dtype, **OURS)
                apart = getattr(torch.ops.aten, name)(*(tensor.to(dtype) for tensor in given), **named)
            assert (result.dtype, result.shape, result.stride()) == (dtype, expected.shape, expected.stride())
            assert expected.dtype == dtype
            assert torch.equal(result, apart)
            assert result.stride() == apart.stride()


EMPTY = {
    "linear": [(R(0, 64), R(80, 64)), (R(4, 64), R(0, 64))],
    "mm": [(R(0, 64), R(64, 80)), (R(4, 64), R(64, 0))],
    "conv2d": [(R(0, 16, 7, 7), R(32, 16, 3, 3)), (channels_last(R(0, 16, 7, 7)), R(32, 16, 3, 3))],
    "conv_transpose2d": [(R(0, 16, 7, 7), R(16, 32, 3, 3))],
}


@pytest.mark.parametrize("name", EMPTY)
def test_empty_ones(name):
    for tensors in EMPTY[name]:
        torch.library.opcheck(getattr(torch.ops.habana_mp, name).default, tensors, {"weight_dtype": BF16, **OURS})


CHECKED = [(layout, layout) for layout in LAYOUTS] + [("contiguous", "channels-last"), ("channels-last", "contiguous")]


# torch 2.15 looks at .grad of the inputs that it makes.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize(
    ("layouts", "grad"),
    [*((pair, False) for pair in CHECKED), (CHECKED[0], True), (CHECKED[1], True)],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else ["no_grad", "grad"][value],
)
@pytest.mark.parametrize("name", CALLS)
def test_opcheck(name, layouts, grad):
    """Schema, registrations, strides, and the traces of AOTAutograd with sizes that are not known."""
    tensors, named = CALLS[name][0]
    given = [tensor.detach().requires_grad_(grad) for tensor in laid_out(name, tensors, *layouts)]
    torch.library.opcheck(
        getattr(torch.ops.habana_mp, name).default, tuple(given), {**named, "weight_dtype": BF16, **OURS}
    )


class Net(nn.Module):
    """A convolution and a transposed one."""

    def __init__(self, dims):
        super().__init__()
        self.first = getattr(nn, f"Conv{dims}d")(16, 32, 3, padding=1)
        self.second = getattr(nn, f"ConvTranspose{dims}d")(32, 16, 3)

    def forward(self, x):
        return self.second(F.relu(self.first(x)) + 1)


def front_end(name):
    return contextlib.nullcontext(hmp.convert(policy="hmp")) if name == "convert" else hmp.autocast("cpu")


# What lies with its channels last.
LYING = {"none": (False, False), "images": (True, False), "weights": (False, True), "both": (True, True)}
front_ends = pytest.mark.parametrize("front", ["convert", "autocast"])


@front_ends
@pytest.mark.parametrize("lying", LYING)
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_compiled_convolutions(dims, lying, front, dynamic):
    images_last, weights_last = LYING[lying]
    model = Net(dims).eval()
    if weights_last:
        for layer in (model.first, model.second):
            layer.weight.data = channels_last(layer.weight.data)
    with front_end(front), torch.no_grad():
        compiled = torch.compile(model, dynamic=dynamic, fullgraph=True)
        for batch in (2, 3) if dynamic else (2,):  # a static one would be compiled again
            x = R(batch, 16, *[6] * dims)
            x = channels_last(x) if images_last else x
            expected, found = model(x), compiled(x)
            assert found.dtype == expected.dtype == BF16
            # Without oneDNN, torch's convolutions of bfloat16 add up in an order that depends on how their tensors lie.
            ulps = 0 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else 4
            torch.testing.assert_close(found, expected, rtol=ulps * 2**-8, atol=ulps * 2**-8)
            assert found.stride() == expected.stride()


class Residual(nn.Module):
    """The parts of a network for images."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 32, 7, 2, 3, bias=False), nn.BatchNorm2d(32)
        self.wide, self.narrow = nn.Conv2d(32, 64, 1), nn.Conv2d(64, 32, 3, padding=1, groups=4)
        self.head = nn.Linear(32, 128)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, 1)
        x = x + self.narrow(F.gelu(self.wide(x)))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


@front_ends
@pytest.mark.parametrize("last", [False, True], ids=["channels-first", "channels-last"])
def test_a_compiled_model(front, last):
    model, x = Residual().eval(), R(2, 3, 64, 64)
    if last:
        model, x = model.to(memory_format=torch.channels_last), channels_last(x)
    with front_end(front), torch.no_grad():
        expected = model(x)
        found = torch.compile(model, backend="aot_eager", fullgraph=True)(x)
        inductor = torch.compile(model, fullgraph=True)(x)
    assert torch.equal(found, expected)
    torch.testing.assert_close(inductor, expected, rtol=0.02, atol=0.02)  # Inductor rounds less often


W = {dims: nn.Parameter(R(64, 64, *[3] * dims)) for dims in (1, 2, 3)}
M, B = nn.Parameter(R(64, 64)), nn.Parameter(R(64))
# As torch's functions are called, and whether compiled code takes the weight from the cache.
SPELLINGS = {
    "one number for all": (lambda x: F.conv1d(x[None], W[1], None, 2, 1), True),
    "one number by its name": (lambda x: F.conv2d(x.view(1, 64, 8, 8), W[2], padding=1, stride=2), True),
    "tuples": (lambda x: F.conv3d(x.view(1, 64, 4, 4, 4), W[3], None, (1, 2, 1), (1, 1, 1)), True),
    "dilation": (lambda x: F.conv2d(x.view(1, 64, 8, 8), W[2], None, 1, 2, 2), True),
    "transposed": (lambda x: F.conv_transpose2d(x.view(1, 64, 8, 8), W[2], None, 2, 0, 1), True),
    "transposed, by names": (lambda x: F.conv_transpose1d(x[None], W[1], stride=2, output_padding=1, dilation=2), True),
    "a word for the padding": (lambda x: F.conv2d(x.view(1, 64, 8, 8), W[2], padding="same"), False),
    "one image": (lambda x: F.conv2d(x.view(64, 8, 8), W[2], B), True),
    "linear by names": (lambda x: F.linear(input=x, weight=M, bias=B), True),
    "mm by names": (lambda x: torch.mm(input=x, mat2=M), False),
    "matmul by a name": (lambda x: torch.matmul(x, other=M), True),
    "addmm with numbers": (lambda x: torch.addmm(B, x, M, beta=0.5, alpha=2), True),
    "addmm by names": (lambda x: torch.addmm(input=B, mat1=x, mat2=M), False),
    "a method": (lambda x: x.addmm(x, M), True),
    "an operator": (lambda x: x @ M, True),
}


@front_ends
@pytest.mark.parametrize("name", SPELLINGS)
def test_calls_as_torch_takes_them(name, front):
    """Before, one number for all dimensions raised RuntimeError under convert, and so did torch.mm(input=...)."""
    call, cached = SPELLINGS[name]
    x = R(64, 64)
    hmp.cache.clear()
    with front_end(front), torch.no_grad():
        found = torch.compile(call, backend="aot_eager", fullgraph=True)(x)
        # By the dispatcher's form of the call all of them do, but for the word.
        assert hmp.cache.info().misses == (cached or (front == "autocast" and "word" not in name))
        assert torch.equal(found, call(x))
