"""Layers with sizes as in models: libraries choose other kernels for them than for the small ones of torch's tables.

Mixed inputs: weights and inputs are bfloat16.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import nn

from zoo.cases.calls import Call, Maker
from zoo.cases.variants import LOW

_Given = tuple[tuple[int, ...], ...]

LAYERS: dict[str, tuple[Callable[[], nn.Module], _Given]] = {
    "Linear": (lambda: nn.Linear(256, 512), ((16, 256),)),
    "LSTM": (lambda: nn.LSTM(256, 128), ((12, 4, 256),)),
    "LSTM of two layers, both ways": (lambda: nn.LSTM(256, 128, 2, bidirectional=True, dropout=0.1), ((12, 4, 256),)),
    "LSTM with projection": (lambda: nn.LSTM(256, 128, proj_size=64), ((12, 4, 256),)),
    "LSTM, batch first": (lambda: nn.LSTM(128, 256, batch_first=True), ((4, 12, 128),)),
    "GRU": (lambda: nn.GRU(256, 128, 2), ((12, 4, 256),)),
    "RNN": (lambda: nn.RNN(256, 128), ((12, 4, 256),)),
    "LSTMCell": (lambda: nn.LSTMCell(256, 128), ((8, 256),)),
    "Conv1d": (lambda: nn.Conv1d(64, 128, 3), ((4, 64, 50),)),
    "Conv2d": (lambda: nn.Conv2d(32, 64, 3, padding=1), ((2, 32, 28, 28),)),
    "Conv2d, channels last": (
        lambda: nn.Conv2d(32, 64, 3, padding=1).to(memory_format=torch.channels_last),
        ((2, 32, 28, 28),),
    ),
    "Conv2d in groups": (lambda: nn.Conv2d(64, 64, 3, groups=64), ((2, 64, 14, 14),)),
    "Conv3d": (lambda: nn.Conv3d(8, 16, 3), ((1, 8, 8, 14, 14),)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(32, 16, 2, 2), ((2, 32, 14, 14),)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(64), ((4, 64, 14, 14),)),
    "BatchNorm2d without averages": (lambda: nn.BatchNorm2d(64, track_running_stats=False), ((4, 64, 14, 14),)),
    "SyncBatchNorm of one process": (lambda: nn.SyncBatchNorm(64).eval(), ((4, 64, 14, 14),)),
    "GroupNorm": (lambda: nn.GroupNorm(8, 64), ((4, 64, 14, 14),)),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(64, affine=True, track_running_stats=True), ((4, 64, 14, 14),)),
    "LayerNorm": (lambda: nn.LayerNorm(256), ((4, 16, 256),)),
    "RMSNorm": (lambda: nn.RMSNorm(256), ((4, 16, 256),)),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(256, 8, 0.1, batch_first=True), ((4, 16, 256),) * 3),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(256, 8, 512, batch_first=True), ((4, 16, 256),)),
    "Dropout": (lambda: nn.Sequential(nn.Dropout(0.3), nn.FeatureAlphaDropout(0.3)), ((4, 16, 256),)),
    "RReLU": (nn.RReLU, ((4, 16, 256),)),
    "Softmax": (lambda: nn.Softmax(-1), ((4, 16, 256),)),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), ((2, 32, 28, 28),)),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d(4), ((2, 32, 28, 28),)),
    "FractionalMaxPool2d": (lambda: nn.FractionalMaxPool2d(2, output_ratio=0.5), ((2, 32, 28, 28),)),
    "Upsample": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), ((2, 16, 14, 14),)),
    "spectral norm": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(256, 64)), ((16, 256),)),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(32, 64, 3)), ((2, 32, 14, 14),)),
    "Bilinear": (lambda: nn.Bilinear(64, 32, 16), ((8, 64), (8, 32))),
}


def maker(name: str) -> Maker:
    return functools.partial(_calls, name)


def _calls(name: str, inputs: str) -> list[Call]:
    made, shapes = LAYERS[name]
    dtype = LOW if inputs == "mixed" else torch.float32
    calls = []
    for training in (True, False):
        torch.manual_seed(0)
        layer = made().to(dtype)
        given = tuple(torch.randn(shape).to(dtype).requires_grad_() for shape in shapes)
        if "channels last" in name:
            given = tuple(each.detach().to(memory_format=torch.channels_last).requires_grad_() for each in given)
        calls.append(Call(layer.train(training and "SyncBatchNorm" not in name), given, {}))
    return calls
