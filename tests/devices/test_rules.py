"""A policy gives an op the same dtype on every device, under convert and in a region.

For the presets torch-cuda and torch-xpu tests/autocast/test_autocast_agreement.py compares every op with torch.autocast, on fake tensors.
"""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F

from habana_mp import hmp

FP64, FP32, BF16, FP16 = torch.float64, torch.float32, torch.bfloat16, torch.float16


def mat(device, dtype=FP32, shape=(8, 8)):
    return torch.ones(shape, device=device, dtype=dtype)


def image(device):
    return mat(device, shape=(1, 2, 8, 8))


PRESETS = ("hmp", "hmp-o2", "balanced", "hpu-autocast", "torch-cuda")
# Name, call, and the dtype of its result by each of the presets.
TABLE = [
    ("linear", lambda d: F.linear(mat(d), mat(d)), [BF16, BF16, BF16, BF16, FP16]),
    ("a @ b", lambda d: mat(d) @ mat(d, BF16), [BF16, BF16, BF16, BF16, FP16]),
    ("bmm", lambda d: torch.bmm(mat(d, shape=(2, 8, 8)), mat(d, shape=(2, 8, 8))), [BF16, BF16, BF16, BF16, FP16]),
    ("conv2d", lambda d: F.conv2d(image(d), image(d)), [BF16, BF16, BF16, BF16, FP16]),
    ("attention", lambda d: F.scaled_dot_product_attention(*[image(d)] * 3), [FP32, FP32, BF16, FP32, FP16]),
    ("softmax", lambda d: F.softmax(mat(d, BF16), -1), [FP32, FP32, BF16, BF16, FP32]),
    ("cross_entropy", lambda d: F.cross_entropy(mat(d, BF16), mat(d, torch.long, (8,))), [FP32] * 5),
    ("log", lambda d: mat(d, BF16).log(), [FP32] * 5),
    ("relu", lambda d: F.relu(mat(d)), [BF16, FP32, FP32, FP32, FP32]),
    (
        "batch_norm",
        lambda d: F.batch_norm(image(d), mat(d, shape=(2,)), mat(d, shape=(2,))),
        [BF16, FP32, FP32, BF16, FP32],
    ),
    ("add", lambda d: mat(d, BF16) + mat(d), [FP32] * 5),
    ("add of low dtypes", lambda d: mat(d, BF16) + mat(d, FP16), [FP32] * 5),
    ("cat", lambda d: torch.cat([mat(d, BF16), mat(d)]), [FP32] * 5),
    ("in place", lambda d: mat(d, BF16).add_(mat(d)), [BF16] * 5),
    ("float64", lambda d: torch.mm(mat(d, FP64), mat(d, FP64)), [FP64] * 5),
]


def columns(front_end):
    for number, preset in enumerate(PRESETS):
        yield pytest.param(front_end, preset, number, id=f"{front_end}-{preset}")


@pytest.mark.parametrize(("front_end", "preset", "column"), [*columns("convert"), *columns("region")])
def test_dtypes(any_device, front_end, preset, column):
    if front_end == "convert":
        hmp.convert(policy=preset)
        found = {name: call(any_device) for name, call, _ in TABLE}
    else:
        with hmp.autocast(any_device, policy=hmp.Policy.load(preset)):
            found = {name: call(any_device) for name, call, _ in TABLE}
    assert {name: result.dtype for name, result in found.items()} == {
        name: expected[column] for name, _, expected in TABLE
    }
    assert {result.device.type for result in found.values()} == {any_device}


def test_dtypes_of_torch_autocast(accelerator):
    """Its dtypes are those that the preset gives under both front ends."""
    with torch.autocast(accelerator, FP16):
        found = {name: call(accelerator).dtype for name, call, _ in TABLE}
    assert found == {name: expected[PRESETS.index("torch-cuda")] for name, _, expected in TABLE}


@pytest.mark.skipif("HABANA_MP_LATE_LIBRARY" in os.environ, reason="a device of somebody else has no default policy")
def test_a_region_takes_the_default_policy_of_its_device(any_device):
    with hmp.autocast(any_device):
        assert torch.mm(mat(any_device), mat(any_device)).dtype == {"cpu": BF16, "cuda": FP16}[any_device]


def test_a_banned_op_raises(accelerator, front_end):
    """As torch.autocast does for CUDA."""
    region = front_end(FP16)
    y, target = (mat(accelerator, shape=(4,)) for _ in range(2))
    with region(), pytest.raises(RuntimeError, match="binary_cross_entropy"):
        F.binary_cross_entropy(y, target)
    with region():
        assert F.binary_cross_entropy_with_logits(y, target).dtype == FP32


@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_a_region_leaves_the_other_device_alone(any_device):
    with hmp.autocast("cpu" if any_device == "late" else {"cpu": "cuda", "cuda": "cpu"}[any_device]):
        assert torch.mm(mat(any_device), mat(any_device)).dtype == FP32
