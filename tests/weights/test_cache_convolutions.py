"""Packed weights of convolutions: which calls use them, and that their numbers and memory format are those of plain copies."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from cached_weight import BF16, packs, set_packing
from torch import nn

from habana_mp import hmp

pytestmark = [
    pytest.mark.usefixtures("empty_cache"),
    packs,
]
LAST, LAST_3D = torch.channels_last, torch.channels_last_3d
FRONTS = {
    "convert": lambda: contextlib.nullcontext(hmp.convert(policy="hmp")),
    "autocast": lambda: hmp.autocast("cpu", policy="hmp"),
}


def packed():
    return hmp.cache.info().packed


def plain_conv(x, conv):
    function = F.conv2d if x.dim() == 4 else F.conv3d
    bias = None if conv.bias is None else conv.bias.to(BF16)
    return function(x.to(BF16), conv.weight.to(BF16), bias, conv.stride, conv.padding, conv.dilation, conv.groups)


# The sizes of the images, and the convolution.
CONVOLUTIONS = {
    "3x3": ((1, 32, 14, 14), lambda: nn.Conv2d(32, 48, 3, padding=1)),
    "3x3-batch": ((5, 32, 14, 14), lambda: nn.Conv2d(32, 48, 3, padding=1)),
    "1x1": ((2, 64, 9, 7), lambda: nn.Conv2d(64, 72, 1)),
    "1x1-of-one-pixel": ((2, 64, 1, 1), lambda: nn.Conv2d(64, 72, 1)),
    "7x7-stride-2-of-3-channels": ((1, 3, 33, 31), lambda: nn.Conv2d(3, 64, 7, 2, 3, bias=False)),
    "patches": ((2, 3, 32, 32), lambda: nn.Conv2d(3, 64, 8, 8)),
    "uneven": ((1, 24, 15, 12), lambda: nn.Conv2d(24, 48, (3, 5), (2, 1), (0, 2), (1, 2))),
    "dilated": ((1, 32, 16, 16), lambda: nn.Conv2d(32, 32, 3, padding=2, dilation=2)),
    "groups": ((2, 64, 10, 10), lambda: nn.Conv2d(64, 64, 3, padding=1, groups=4)),
    "depthwise": ((2, 512, 9, 9), lambda: nn.Conv2d(512, 512, 3, padding=1, groups=512)),
    "odd-channels": ((1, 19, 8, 8), lambda: nn.Conv2d(19, 37, 3)),
    "3d": ((2, 16, 5, 6, 7), lambda: nn.Conv3d(16, 32, 3, (1, 2, 1), (1, 0, 1))),
}
# What lies with channels last.
LYING = {"images": (True, False), "weight": (False, True), "both": (True, True)}


@pytest.mark.parametrize("packing", ["unmeasured", "measured"])
@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("lying", LYING)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_the_numbers_and_the_format_of_a_plain_copy(name, lying, front, packing, monkeypatch):
    set_packing(packing, monkeypatch)
    sizes, make = CONVOLUTIONS[name]
    images_last, weight_last = LYING[lying]
    last = LAST if len(sizes) == 4 else LAST_3D
    x, conv = torch.randn(sizes), make()
    if images_last:
        x = torch.empty(sizes, memory_format=last).copy_(x)  # contiguous() leaves one pixel as it is
    if weight_last:
        conv = conv.to(memory_format=last)
    with torch.no_grad():
        want = plain_conv(x, conv)
        with FRONTS[front]():
            for _ in range(2):
                y = conv(x)
                assert torch.equal(y, want)
                assert y.stride() == want.stride()
            # A copy serves images of other sizes.
            more = torch.cat([x, x], 2).contiguous(memory_format=last)
            assert torch.equal(conv(more), plain_conv(more, conv))
    info = hmp.cache.info()
    if packing == "unmeasured":
        assert (info.entries, info.packed, info.misses, info.hits) == (1, 1, 1, 2)
    else:  # what is the faster depends on the machine; every one was measured
        rows = [row for row in hmp.cache.choices() if row.weight == tuple(conv.weight.shape) and row.microseconds]
        assert {way for row in rows for way in row.microseconds} == {"plain", "onednn"}


IMAGES = torch.randn(2, 32, 9, 9)
W = nn.Parameter(torch.randn(32, 32, 3, 3))
# How many packed copies there are after a call.
CALLS = {
    "channels last": (1, lambda x: F.conv2d(x, W)),
    "padding as one number": (1, lambda x: F.conv2d(x, W, None, 1, 1)),
    "tuples of one": (1, lambda x: F.conv2d(x, W, None, (2,), (1,), (1,))),
    "low images": (1, lambda x: F.conv2d(x.to(BF16), W)),
    "channels first": (0, lambda x: F.conv2d(x.contiguous(), W)),
    "images with gaps": (0, lambda x: F.conv2d(x[:, :, ::2], W)),
    "padding by a name": (0, lambda x: F.conv2d(x, W, None, 1, "same")),
    "by keywords": (0, lambda x: F.conv2d(x, W, stride=2)),
    "one image": (0, lambda x: F.conv2d(x[0], W)),
    "transposed": (0, lambda x: F.conv_transpose2d(x, W)),
    "a bias with gaps": (1, lambda x: F.conv2d(x, W, torch.arange(64.0)[::2])),
    "a low bias with gaps": (0, lambda x: F.conv2d(x, W, torch.arange(64.0).to(BF16)[::2])),
    "a low bias of one number": (0, lambda x: F.conv2d(x, W, torch.ones(1).to(BF16).expand(32))),
    "no parameter": (0, lambda x: F.conv2d(x, W.detach().clone())),
    "no images": (0, lambda x: F.conv2d(x[:0], W)),
    "a list of strides": (0, lambda x: F.conv2d(x, W, None, [2, 2])),
}


@pytest.mark.parametrize("name", CALLS)
def test_which_calls_use_it(name, monkeypatch):
    count, call = CALLS[name]
    x = IMAGES.contiguous(memory_format=LAST)
    results = []
    for packing in ("unmeasured", "off"):
        set_packing(packing, monkeypatch)
        hmp.convert(policy="hmp")
        with torch.no_grad():
            results.append(call(x))
        assert packed() == (count if packing == "unmeasured" else 0)
        hmp.revert()
    assert results[0].dtype == BF16
    assert torch.equal(*results)
    assert results[0].stride() == results[1].stride()


def test_a_graph_keeps_it_plain():
    hmp.convert(policy="hmp")
    F.conv2d(IMAGES.contiguous(memory_format=LAST), W).float().sum().backward()
    assert packed() == 0
    W.grad = None


def test_images_that_require_grad_are_no_weights():
    hmp.convert(policy="hmp")
    x = torch.randn(1, 32, 8, 8).requires_grad_()
    with torch.no_grad():
        F.conv2d(x, W)
    assert hmp.cache.info().entries == 1


BAD = {
    "channels": (lambda x: F.conv2d(x[:, :30].contiguous(memory_format=LAST), W), RuntimeError, "to have 32 channels"),
    "groups": (lambda x: F.conv2d(x, W, None, 1, 0, 1, 3), RuntimeError, "groups"),
    "no groups": (lambda x: F.conv2d(x, W, None, 1, 0, 1, 0), RuntimeError, "groups"),
    "kernel": (lambda x: F.conv2d(x[:, :, :2].contiguous(memory_format=LAST), W), RuntimeError, "Kernel size"),
    "stride": (lambda x: F.conv2d(x, W, None, 0), RuntimeError, "stride"),
    "negative padding": (lambda x: F.conv2d(x, W, None, 1, -1), RuntimeError, "padding"),
    "bias": (lambda x: F.conv2d(x, W, torch.zeros(3)), RuntimeError, "bias"),
    "three strides": (lambda x: F.conv2d(x, W, None, (1, 1, 1)), RuntimeError, "stride"),
    "a tuple of groups": (lambda x: F.conv2d(x, W, None, 1, 0, 1, (1,)), TypeError, "groups"),
    "a huge padding": (lambda x: F.conv2d(x, W, None, 1, 2**33), RuntimeError, "overflow"),
    "the hugest padding": (lambda x: F.conv2d(x, W, None, 1, 2**63 - 1), RuntimeError, "padding"),
    "a huge dilation": (lambda x: F.conv2d(x, W, None, 1, 0, 2**62), RuntimeError, "SymInt|Kernel size"),
    "a huge stride": (lambda x: F.conv2d(x, W, None, 2**70), ValueError, "Overflow"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_call_raises_torchs_own_error(name):
    call, error, text = BAD[name]
    hmp.convert(policy="hmp")
    with torch.no_grad(), pytest.raises(error, match=text):
        call(IMAGES.contiguous(memory_format=LAST))
    assert packed() == 0


def test_a_weight_of_two_convolutions_stays_plain_in_the_end():
    hmp.convert(policy="hmp")
    x, w = IMAGES.contiguous(memory_format=LAST), nn.Parameter(torch.randn(32, 32, 3, 3))
    with torch.no_grad():
        for _ in range(20):
            for stride in (1, 2):
                assert torch.equal(F.conv2d(x, w, None, stride), F.conv2d(x.to(BF16), w.to(BF16), None, stride))
    info = hmp.cache.info()
    assert info.entries == 1
    assert info.misses <= 4


def test_a_weight_that_is_transposed_in_place_is_packed_anew():
    hmp.convert(policy="hmp")
    x, w = torch.randn(2, 64, 5, 5).contiguous(memory_format=LAST), nn.Parameter(torch.randn(64, 64, 3, 3))
    with torch.no_grad():
        F.conv2d(x, w)
        for change in (lambda: w.transpose_(0, 1), lambda: w.as_strided_((64, 64, 3, 3), (576, 1, 192, 64))):
            change()
            assert torch.equal(F.conv2d(x, w), F.conv2d(x.to(BF16), w.to(BF16)))


def test_measured_choices_give_the_same_numbers(monkeypatch):
    set_packing("measured", monkeypatch)
    hmp.convert(policy="hmp")
    w = nn.Parameter(torch.randn(48, 32, 3, 3))
    with torch.no_grad():
        for sizes in ((1, 32, 9, 9), (2, 32, 9, 9), (9, 32, 9, 9), (1, 32, 57, 40)):
            x = torch.randn(sizes).contiguous(memory_format=LAST)
            assert torch.equal(F.conv2d(x, w), F.conv2d(x.to(BF16), w.to(BF16)))
    rows = [row for row in hmp.cache.choices() if row.weight == (48, 32, 3, 3) and row.microseconds]
    assert {row.input for row in rows} >= {(1, 32, 8, 8), (2, 32, 8, 8), (8, 32, 8, 8), (1, 32, 56, 40)}
    for row in rows:
        assert row.by in row.microseconds
        assert set(row.microseconds) == {"plain", "onednn"}


def test_images_of_many_sizes_share_a_few_choices(monkeypatch):
    set_packing("measured", monkeypatch)
    hmp.convert(policy="hmp")
    w = nn.Parameter(torch.randn(40, 40, 3, 3))
    with torch.no_grad():
        for size in range(32, 64):
            F.conv2d(torch.randn(1, 40, size, size).contiguous(memory_format=LAST), w)
    rows = [row for row in hmp.cache.choices() if row.weight == (40, 40, 3, 3) and row.microseconds]
    assert [row.input[2] for row in rows] == [32, 40, 48, 56]


LARGE = {
    "of many images": ((64, 16, 32, 32), (16, 16, 3, 3), (8, 16, 32, 32)),
    "of large images": ((2, 16, 1024, 512), (16, 16, 3, 3), (1, 16, 128, 512)),
    "of many outputs": ((2, 16, 128, 128), (256, 16, 1, 1), (1, 16, 32, 128)),
    "of a kernel larger than the images": ((1, 16, 2, 3), (16, 16, 4, 4), (1, 16, 2, 3)),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_trial_is_no_larger_than_the_call(name, monkeypatch):
    set_packing("measured", monkeypatch)
    sizes, kernel, tried = LARGE[name]
    hmp.convert(policy="hmp")
    w = nn.Parameter(torch.randn(kernel))
    with torch.no_grad():
        F.conv2d(torch.randn(sizes).contiguous(memory_format=LAST), w, None, 1, kernel[-1] // 2)
    assert tried in [row.input for row in hmp.cache.choices() if row.weight == kernel and row.microseconds]


def test_a_copy_that_padding_would_blow_up_stays_plain(monkeypatch):
    set_packing("measured", monkeypatch)
    hmp.convert(policy="hmp")
    conv = nn.Conv2d(4000, 4000, 1, groups=2000).to(memory_format=LAST)  # 8 times the size
    with torch.no_grad():
        conv(torch.randn(1, 4000, 2, 2).contiguous(memory_format=LAST))
    info = hmp.cache.info()
    assert (info.entries, info.packed, info.bytes) == (1, 0, conv.weight.numel() * 2)


def test_a_resnet_under_both_fronts_has_the_bits_of_plain_copies(monkeypatch):
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(embedding_size=16, hidden_sizes=[32, 64], depths=[2, 2], num_labels=10)
    model = transformers.ResNetForImageClassification(config).eval().to(memory_format=LAST)
    x = torch.randn(2, 3, 64, 64).contiguous(memory_format=LAST)
    results = {}
    for packing in ("off", "unmeasured"):
        set_packing(packing, monkeypatch)
        for front, scope in FRONTS.items():
            hmp.revert()
            hmp.cache.clear()
            with torch.inference_mode(), scope():
                results[packing, front] = model(x).logits
                assert packed() == (0 if packing == "off" else hmp.cache.info().entries)
    for front in FRONTS:
        assert torch.equal(results["off", front], results["unmeasured", front])
