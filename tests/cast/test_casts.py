"""The cast of a tensor, bit for bit that of Tensor.to, whatever its size and layout and whichever kernel runs."""

import os
import subprocess
import sys

import pytest
import torch

from habana_mp import hmp

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
SPECIAL = [0.0, -0.0, 1e-45, -1e-40, 6e-8, 65504.0, 65520.0, 1e38, 3.4e38, float("inf"), float("-inf"), float("nan")]


def values(n):
    generator = torch.Generator().manual_seed(n)
    made = torch.randn(n, generator=generator) * torch.logspace(-30, 30, max(n, 1))[:n]
    count = min(n, len(SPECIAL))
    made[:count] = torch.tensor(SPECIAL[:count])
    return made


LAYOUTS = {
    "contiguous": values,
    "odd size": lambda n: values(n + 1),
    "matrix": lambda n: values(n).view(-1, 32),
    "transposed": lambda n: values(n).view(-1, 32).t(),
    "channels-last": lambda n: values(n).view(2, 4, 8, -1).contiguous(memory_format=torch.channels_last),
    "every other": lambda n: values(2 * n)[::2],
    "expanded": lambda n: values(32)[:, None].expand(-1, n // 32),
    "unaligned": lambda n: values(n + 3)[3:],
    "empty": lambda n: values(0),
    "scalar": lambda n: values(1)[0],
}


def cast(x, to):
    """What reaches an op that hands its argument back: resolve_conj of a real tensor is that tensor."""
    low = to if to != F32 else BF16
    lists = {"fp32" if to == F32 else "lower": ["resolve_conj"]}
    hmp.convert(policy=hmp.Policy.from_ops(**lists, low_dtype=low))
    result = torch.resolve_conj(x)
    hmp.revert()
    return result


def bits(x):
    """The bits, with one pattern for every NaN: any quiet NaN will do."""
    x = torch.where(x.isnan(), torch.zeros((), dtype=x.dtype), x)
    return x.contiguous().view(torch.int32 if x.dtype == F32 else torch.int16)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("n", [64, 4096, 1 << 17], ids=lambda n: f"{n}-elements")
@pytest.mark.parametrize(
    ("source", "to"),
    [(F32, BF16), (F32, F16), (BF16, F32), (F16, F32), (BF16, F16), (F16, BF16)],
    ids=lambda dtype: str(dtype).removeprefix("torch."),
)
def test_a_cast_is_tensor_to(source, to, n, layout):
    x = layout(n)
    x = x.to(source) if x.dim() < 4 else x.to(source, memory_format=torch.channels_last)
    expected, result = x.to(to), cast(x, to)
    assert result.dtype == to
    assert (result.shape, result.stride()) == (expected.shape, expected.stride())
    assert torch.equal(result.isnan(), expected.isnan())
    assert torch.equal(bits(result), bits(expected))


def test_its_gradient_is_that_of_tensor_to():
    x = torch.randn(300, 200).t().requires_grad_()
    weight = torch.randn(200, 300)
    (cast(x, BF16) * weight).sum().backward()
    assert torch.equal(x.grad, weight.bfloat16().float())


@pytest.mark.parametrize("variant", ["scalar", "avx2", "avx512", "avx512_bf16", "neon"])
def test_every_kernel_gives_the_same_bits(variant):
    """A kernel that this CPU lacks is refused by name."""
    program = """
import torch
from habana_mp import hmp
hmp.convert(policy=hmp.Policy.from_ops(lower=["resolve_conj"]))
x = torch.randn(100_003, generator=torch.Generator().manual_seed(1))
try:
    print(torch.resolve_conj(x).equal(x.to(torch.bfloat16)))
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "HABANA_MP_CAST_VARIANT": variant},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "True\n" or f"HABANA_MP_CAST_VARIANT={variant} is a variant that this CPU cannot run" in done.stdout
