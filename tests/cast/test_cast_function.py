"""hmp.cast: the casts of the core on NumPy arrays (D37), bit for bit those of Tensor.to. test_cast_tensors.py has tensors."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
import torch

import habana_mp._core as _core
from habana_mp import hmp

DOOR = _core._testing
TORCH = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
NUMPY = {name: np.dtype(name) for name in ("float32", "float16")} | {"bfloat16": np.dtype(ml_dtypes.bfloat16)}
NAMED = np.dtype((np.uint16, [("bfloat16", np.uint16)]))
PAIRS = [(a, b) for a in TORCH for b in TORCH if a != b]
SPECIAL = [0.0, -0.0, 1e-45, -1e-40, 6e-8, 65504.0, 65520.0, 1e38, 3.4e38, float("inf"), float("-inf"), float("nan")]


@pytest.fixture(params=_core.cast_variants())
def variant(request):
    DOOR.force_cast_variant(request.param)
    yield request.param
    DOOR.reset_cast_variant()


def bits(x):
    """The bits of an array, with one pattern for every NaN: any quiet NaN will do."""
    plain = x.view(np.uint32 if x.dtype.itemsize == 4 else np.uint16).copy()
    plain[np.isnan(to_tensor(x).float().numpy())] = 0
    return plain


def to_tensor(x):
    x = np.array(x, order="C")
    return (
        torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if x.dtype == NUMPY["bfloat16"] else torch.from_numpy(x)
    )


def to_array(tensor):
    if tensor.dtype != torch.bfloat16:
        return tensor.numpy()
    return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)


def values(shape, name):
    count = int(np.prod(shape))
    made = (
        torch.randn(count, generator=torch.Generator().manual_seed(count))
        * torch.logspace(-30, 30, max(count, 1))[:count]
    )
    made[: len(SPECIAL)] = torch.tensor(SPECIAL[:count])
    return to_array(made.to(TORCH[name])).reshape(shape)


def unaligned(name):
    memory = np.zeros(1001 * 4 + 1, np.uint8)[1:]
    x = memory[: 1001 * NUMPY[name].itemsize].view(NUMPY[name])
    x[:] = values(1001, name)
    assert not x.flags.aligned
    return x


def field(name):
    """Elements that do not lie a whole number of elements apart."""
    x = np.zeros(301, np.dtype([("a", np.uint8), ("x", NUMPY[name])]))["x"]
    x[:] = values(301, name)
    return x


def read_only(name):
    x = values((7, 11), name)
    x.flags.writeable = False
    return x


def swapped(name):
    x = values((17, 19), name)
    return x.astype(x.dtype.newbyteorder(">"))


LAYOUTS = {
    "contiguous": lambda name: values((30, 41), name),
    "large": lambda name: values((3, 100, 1001), name),
    "large, streamed into out": lambda name: values((1800, 2048), name),
    "Fortran order": lambda name: np.asfortranarray(values((30, 41), name)),
    "transposed": lambda name: values((300, 411), name).T,
    "permuted": lambda name: values((12, 65, 70), name).transpose(2, 0, 1),
    "every other": lambda name: values((30, 41), name)[:, ::2],
    "from the last": lambda name: values((30, 41), name)[::-1, ::-3],
    "broadcast": lambda name: np.broadcast_to(values(41, name), (30, 41)),
    "broadcast column": lambda name: np.broadcast_to(values((30, 1), name), (30, 41)),
    "0-d": lambda name: values((), name),
    "one": lambda name: values((1, 1), name),
    "empty": lambda name: values((3, 0, 2), name),
    "unaligned": unaligned,
    "field": field,
    "read-only": read_only,
    "byte-swapped": swapped,
    "no class of its own": lambda name: values((5, 6), name).view(type("Mine", (np.ndarray,), {})),
}


def expected(x, to):
    native = x.astype(x.dtype.newbyteorder("="))
    return to_array(to_tensor(native).to(TORCH[to]))


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize(("source", "to"), PAIRS, ids=[f"{a}-{b}" for a, b in PAIRS])
def test_an_array_is_cast_as_a_tensor_is(source, to, layout):
    x = layout(source)
    before = x.tobytes()
    result = hmp.cast(x, to)
    assert type(result) is np.ndarray
    assert result.dtype == NUMPY[to]
    assert result.dtype.isnative
    assert result.strides == np.empty_like(x, dtype=NUMPY[to]).strides, "the memory order of x"
    np.testing.assert_array_equal(bits(result), bits(expected(x, to)))

    out = np.ones(x.shape, NUMPY[to])
    assert hmp.cast(x, to, out=out) is out
    np.testing.assert_array_equal(bits(out), bits(expected(x, to)))
    assert x.tobytes() == before


@pytest.mark.parametrize("low", ["bfloat16", "float16"])
def test_every_kernel_casts_every_low_number(variant, low):
    """D37, in each variant: all 2^16 patterns up, and back again unchanged."""
    x = np.arange(1 << 16, dtype=np.uint16).view(NUMPY[low])
    up = hmp.cast(x, "float32")
    np.testing.assert_array_equal(bits(up), bits(expected(x, "float32")))
    np.testing.assert_array_equal(bits(hmp.cast(up, low)), bits(x))
    other = "float16" if low == "bfloat16" else "bfloat16"
    np.testing.assert_array_equal(bits(hmp.cast(x, other)), bits(expected(x, other)))


@pytest.mark.parametrize("to", ["bfloat16", "float16"])
@pytest.mark.parametrize("layout", ["large", "transposed", "from the last"])
def test_every_kernel_rounds_as_torch_does(variant, layout, to):
    x = LAYOUTS[layout]("float32")
    np.testing.assert_array_equal(bits(hmp.cast(x, to)), bits(expected(x, to)))
    tensor = to_tensor(x)
    assert hmp.cast(tensor, to).isnan().equal(tensor.isnan())
    assert hmp.cast(tensor, to).nan_to_num(7).equal(tensor.to(TORCH[to]).nan_to_num(7))


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("layout", ["large", "large, streamed into out", "transposed", "permuted", "broadcast column"])
@pytest.mark.parametrize(("source", "to"), [("float32", "bfloat16"), ("float16", "float32")])
def test_threads_share_a_cast(threads, source, to, layout):
    x = LAYOUTS[layout](source)
    want = bits(expected(x, to))
    np.testing.assert_array_equal(bits(hmp.cast(x, to)), want)
    for out in (np.ones(x.shape, NUMPY[to]), np.ones(x.shape, NUMPY[to], order="F")):
        np.testing.assert_array_equal(bits(hmp.cast(x, to, out=out)), want)


def test_threads_may_cast_at_once():
    x = LAYOUTS["large"]("float32")
    want = bits(expected(x, "bfloat16"))
    with ThreadPoolExecutor(4) as pool:
        for result in pool.map(lambda _: hmp.cast(x, "bfloat16"), range(16)):
            np.testing.assert_array_equal(bits(result), want)


def test_the_door_for_tests_chooses_the_kernel():
    assert _core.cast_variants()[0] == "scalar"
    for name in _core.cast_variants():
        DOOR.force_cast_variant(name)
        assert _core.cast_variant() == name
    with pytest.raises(ValueError, match="'avx1024' is not a variant that this CPU runs"):
        DOOR.force_cast_variant("avx1024")
    DOOR.force_cast_variant("scalar")
    DOOR.reset_cast_variant()
    assert _core.cast_variant() == os.environ.get("HABANA_MP_CAST_VARIANT", _core.cast_variants()[-1])


SPELLINGS = [
    *(
        ("bfloat16", d)
        for d in ("bfloat16", "torch.bfloat16", torch.bfloat16, ml_dtypes.bfloat16, np.dtype("bfloat16"))
    ),
    *(("float16", d) for d in ("float16", torch.float16, torch.half, np.float16, np.half, np.dtype("f2"))),
    *(("float32", d) for d in ("float32", torch.float32, torch.float, np.float32, np.single, np.dtype("f4"))),
]


@pytest.mark.parametrize(("to", "dtype"), SPELLINGS, ids=[repr(dtype) for _, dtype in SPELLINGS])
def test_dtypes_and_their_names(to, dtype):
    """D37."""
    for source in TORCH:
        x = values(5, source)
        assert hmp.cast(x, dtype).dtype == NUMPY[to]
        assert hmp.cast(to_tensor(x), dtype).dtype == TORCH[to]


def test_what_has_the_dtype_already_is_returned_itself():
    for name in TORCH:
        x = values(5, name)
        assert hmp.cast(x, name) is x
        tensor = to_tensor(x).requires_grad_()
        assert hmp.cast(tensor, name) is tensor


@pytest.mark.parametrize("name", TORCH)
def test_the_same_dtype_in_the_other_byte_order_is_turned(name):
    x = values(40, name)
    result = hmp.cast(x.astype(x.dtype.newbyteorder(">")), name)
    assert result.dtype.isnative
    np.testing.assert_array_equal(bits(result), bits(x))


OUTS = {
    "every other": lambda shape, dtype: np.zeros((shape[0], 2 * shape[1]), dtype)[:, ::2],
    "Fortran order": lambda shape, dtype: np.zeros(shape, dtype, order="F"),
    "from the last": lambda shape, dtype: np.zeros(shape, dtype)[::-1, ::-1],
    "byte-swapped": lambda shape, dtype: np.zeros(shape, np.dtype(dtype).newbyteorder(">")),
    "field": lambda shape, dtype: np.zeros(shape, np.dtype([("a", np.uint8), ("x", dtype)]))["x"],
}


@pytest.mark.parametrize("make", OUTS.values(), ids=OUTS.keys())
@pytest.mark.parametrize("to", TORCH)
def test_out_may_lie_anyhow(to, make):
    for source in TORCH:
        x = values((30, 41), source)
        out = make(x.shape, NUMPY[to])
        assert hmp.cast(x, to, out=out) is out
        native = np.ascontiguousarray(out.astype(NUMPY[to]))
        np.testing.assert_array_equal(bits(native), bits(expected(x, to)))


def test_out_touches_nothing_else():
    memory = np.zeros((30, 82), np.float16)
    hmp.cast(np.ones((30, 41), np.float32), "float16", out=memory[:, ::2])
    assert memory[:, ::2].all()
    assert not memory[:, 1::2].any()


@pytest.mark.parametrize("count", [16, 1 << 17], ids=["small", "large"])
def test_out_may_share_memory_with_x(count):
    for shift in (0, count):  # where the last numbers would be written over before they are read
        memory = np.zeros(count + 4, np.float32)
        x = memory[:count]
        x[:] = values(count, "float32")
        want = expected(x, "float16")
        hmp.cast(x, "float16", out=memory.view(np.float16)[shift : count + shift])
        np.testing.assert_array_equal(bits(memory.view(np.float16)[shift : count + shift]), bits(want))

        x[:] = values(count, "float32")
        tensor, low = torch.from_numpy(x), torch.from_numpy(memory.view(np.float16)[shift : count + shift])
        want = tensor.half()
        hmp.cast(tensor, "float16", out=low)
        assert low.nan_to_num(7).equal(want.nan_to_num(7))


# bfloat16 where NumPy does not know it


def test_named_bits_are_bfloat16():
    x = values(100, "bfloat16")
    for dtype in (NAMED, [("bfloat16", np.uint16)], [("bfloat16", ">u2")]):
        plain = x.view(np.uint16)
        plain = plain.byteswap() if dtype == [("bfloat16", ">u2")] else plain
        named = plain.view(dtype)
        np.testing.assert_array_equal(bits(hmp.cast(named, "float32")), bits(expected(x, "float32")))
        assert hmp.cast(named, "bfloat16").dtype == NUMPY["bfloat16"]
        np.testing.assert_array_equal(bits(hmp.cast(named, "bfloat16")), bits(x))
        out = np.zeros(100, dtype)
        assert hmp.cast(hmp.cast(x, "float32"), "bfloat16", out=out) is out
        np.testing.assert_array_equal(bits(hmp.cast(out, "bfloat16")), bits(x))


def test_named_bits_can_be_asked_for():
    x = values(100, "float32")
    named = hmp.cast(x, NAMED)
    assert named.dtype.names == ("bfloat16",)
    np.testing.assert_array_equal(bits(named.view(ml_dtypes.bfloat16)), bits(expected(x, "bfloat16")))
    assert hmp.cast(named, NAMED) is named


def test_the_import_takes_no_ml_dtypes():
    program = "import sys; from habana_mp import hmp; assert 'ml_dtypes' not in sys.modules"
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


WITHOUT_ML_DTYPES = """
import io, pickle, sys
sys.modules["ml_dtypes"] = None
import numpy as np, torch
from habana_mp import hmp

x = np.linspace(-3, 3, 60, dtype=np.float32).reshape(5, 12)
low = hmp.cast(x, "bfloat16")
bits = torch.from_numpy(x).bfloat16().view(torch.int16).numpy().view(np.uint16)
assert low.dtype == np.uint16 and low.dtype.names == ("bfloat16",), low.dtype
assert "bfloat16" in repr(low)
assert type(low) is np.ndarray and (low == bits).all()
up = torch.from_numpy(x).bfloat16().float().numpy()
saved = io.BytesIO()
np.save(saved, low)
saved.seek(0)
again = [low, low.copy(), low.T.copy().T, low["bfloat16"].view([("bfloat16", np.uint16)])]
for named in [*again, pickle.loads(pickle.dumps(low)), np.load(saved)]:
    assert (hmp.cast(named, "float32") == up).all()
assert (hmp.cast(low[::2], "float32") == up[::2]).all()
assert hmp.cast(low, torch.bfloat16) is low
assert hmp.cast(x, torch.bfloat16, out=(out := np.zeros_like(low))) is out and (out == bits).all()
assert hmp.cast(low, np.float16).dtype == np.float16
try:
    hmp.cast(bits, "float32")
except TypeError as error:
    print(error)
"""


def test_without_ml_dtypes_bfloat16_is_uint16_under_its_name():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_ML_DTYPES], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert 'x.view([("bfloat16", np.uint16)])' in done.stdout


@pytest.mark.parametrize("size", [0, 1, 2])
def test_an_array_between_other_fields(size):
    """NumPy calls an array of one element contiguous, whatever its stride is."""
    x = np.zeros(size, dtype=[("flag", "u1"), ("value", "f4")])["value"]
    x[...] = 1.5
    assert hmp.cast(x, "float16").tolist() == [1.5] * size
    out = np.zeros(size, dtype=[("flag", "u1"), ("value", "f2")])["value"]
    assert hmp.cast(x, "float16", out=out).tolist() == [1.5] * size
