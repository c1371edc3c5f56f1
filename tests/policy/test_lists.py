"""The presets under lists/: the names that the guides print, what is added to them, and that torch knows every name."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
import torch

import habana_mp
from habana_mp import Policy, presets
from habana_mp._policy.names import known_names

LISTS = Path(habana_mp.__file__).parent / "lists"

# preset: (lower, fp32, promote) as (printed in the guide, in the whole file)
SIZES = {
    "hmp": ((25, 25), (15, 15), (4, 18)),  # F237, D18
    "hmp-o1": ((8, 10), (6, 6), (4, 18)),  # F234, D5
    "hmp-o2": ((8, 16), (0, 0), (0, 0)),  # F235, D4
    "hmp-resnet50": ((11, 11), (5, 5), (4, 18)),  # F236
    "hpu-autocast": ((26, 26), (49, 49), (12, 12)),  # F238
    "xpu": ((23, 24), (43, 43), (12, 12)),  # F239: one of the 24 printed is printed twice; D32
    "torch-cuda": ((23, 34), (51, 72), (10, 11)),  # F240
    "torch-xpu": ((21, 31), (29, 71), (6, 11)),
    "torch-cpu": ((20, 21), (90, 91), (3, 3)),  # 91 printed, inverse twice
}
GUIDES = {
    "hmp": "HMP guide",
    "hmp-o1": "older Habana PyTorch guide",
    "hmp-o2": "older Habana PyTorch guide",
    "hmp-resnet50": "older Habana PyTorch guide",
    "hpu-autocast": "HPU autocast guide",
    "xpu": "torch.xpu.amp guide",
    "torch-cuda": "torch.amp reference",
    "torch-xpu": "torch.amp reference",
    "torch-cpu": "torch.amp reference",
}
FILES = [(preset, name) for preset in SIZES for name in ("lower", "fp32", "promote")]
each_file = pytest.mark.parametrize(("preset", "name"), FILES, ids=[f"{p}/{n}" for p, n in FILES])

# D18
HMP_PROMOTE = set(
    "add sub rsub mul div divide true_divide truediv pow cat concat concatenate stack hstack vstack addcmul addcdiv iadd".split()
)


def names_in(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def read(preset: str, name: str) -> str:
    return (LISTS / preset / f"{name}.txt").read_text()


def test_all_presets_are_here():
    assert set(presets()) == {*SIZES, "balanced"}
    assert list(presets()) == sorted(presets())


@each_file
def test_counts_of_the_guides(preset, name):
    text = read(preset, name)
    printed = text.split("\n# Added:")[0]
    expected = SIZES[preset][("lower", "fp32", "promote").index(name)]
    assert (len(names_in(printed)), len(names_in(text))) == expected


@each_file
def test_no_name_twice(preset, name):
    assert [op for op, count in Counter(names_in(read(preset, name))).items() if count > 1] == []


@each_file
def test_every_name_is_known_to_torch(preset, name):
    assert set(names_in(read(preset, name))) <= known_names()


@each_file
def test_head_says_where_it_comes_from(preset, name):
    text = read(preset, name)
    assert text.startswith(f"# Preset {preset}, {name}: ")
    if SIZES[preset][("lower", "fp32", "promote").index(name)][0]:
        assert f"# Printed in the {GUIDES[preset]}, " in text
    else:
        assert "# Empty: " in text


@pytest.mark.parametrize("preset", ["hmp", "hmp-o1", "hmp-resnet50"])
def test_one_promote_list_for_all_hmp_presets_d18(preset):
    assert set(Policy.load(preset).lists["promote"]) == HMP_PROMOTE


# preset: low dtype, rest, error, further lines of policy.toml
DESCRIPTIONS = {
    "hmp": ("bfloat16", "first_input", (), []),
    "hmp-o1": ("bfloat16", "first_input", (), []),
    "hmp-o2": ("bfloat16", "fp32", (), []),
    "hmp-resnet50": ("bfloat16", "first_input", (), []),
    "hpu-autocast": ("bfloat16", "inputs", (), ['device = "hpu"', 'low_dtypes = ["bfloat16"]', "cache = false"]),  # D29
    "xpu": ("bfloat16", "inputs", (), ['device = "xpu"']),  # D32, D31
    "torch-cuda": ("float16", "inputs", ("binary_cross_entropy",), ['device = "cuda"']),  # D31
    "torch-xpu": ("float16", "inputs", ("binary_cross_entropy",), ['device = "xpu"']),
    "torch-cpu": ("bfloat16", "inputs", (), ['device = "cpu"']),
}


@pytest.mark.parametrize("preset", DESCRIPTIONS)
def test_policy_toml(preset):
    low, rest, error, lines = DESCRIPTIONS[preset]
    policy = Policy.load(preset)
    assert (policy.name, policy.low_dtype, policy.rest) == (preset, getattr(torch, low), rest)
    assert policy.lists["error"] == error
    text = (LISTS / preset / "policy.toml").read_text().splitlines()
    assert f'source = "{GUIDES[preset]}"' in text
    assert [line for line in lines if line not in text] == []
    assert ("cache = false" in text) == (preset == "hpu-autocast")


RULES = [
    ("hmp", "mul", "lower", "D18: listed before promote"),
    ("hmp", "__mul__", "lower", "D16"),
    ("hmp", "div", "fp32", "D18"),
    ("hmp", "__truediv__", "fp32", "D16"),
    ("hmp", "__rtruediv__", "fp32", "D16: 1/x is of the family of div"),
    ("hmp", "true_divide", "promote", "D18 names it itself"),
    ("hmp", "__iadd__", "promote", "D18"),
    ("hmp", "mse_loss", "rest", "F242"),
    ("hmp-o1", "mul", "promote", "D18"),
    ("hmp-o1", "__truediv__", "promote", "D18"),
    ("hmp-o1", "linear", "lower", "D5"),
    ("hmp-o1", "matmul", "lower", "D5"),
    ("hmp-o1", "batch_norm", "fp32", "F259"),
    ("hmp-o2", "conv_transpose2d", "lower", "D4"),
    ("hmp-o2", "baddbmm", "lower", "D4"),
    ("hmp-o2", "add", "rest", "D4"),
    ("hmp-resnet50", "batch_norm", "rest", "F255"),
    ("hmp-resnet50", "avg_pool2d", "lower", "F236"),
    ("hpu-autocast", "softmax", "lower", "F260"),
    ("hpu-autocast", "pow", "fp32", "F50"),
    ("hpu-autocast", "cross_entropy", "fp32", "D17: cross_entropy_loss"),
    ("hpu-autocast", "add", "promote", "F65"),
    ("xpu", "conv_transpose2d", "lower", "D32"),
    ("xpu", "binary_cross_entropy", "fp32", "D31"),
    ("torch-cuda", "gru_cell", "lower", "F127: GRUCell"),
    ("torch-cuda", "rnn_relu_cell", "lower", "F127: RNNCell"),
    ("torch-cuda", "linalg_multi_dot", "lower", "F127: multi_dot"),
    ("torch-cuda", "__rtruediv__", "fp32", "F131"),
    ("torch-cuda", "div", "rest", "F70"),
    ("torch-cuda", "vdot", "promote", "D32"),
    ("torch-cuda", "binary_cross_entropy", "error", "D31"),
    ("torch-cpu", "nll_loss", "fp32", "F241"),
    ("torch-cpu", "lstm", "lower", "D17: mkldnn_rnn_layer"),
    ("torch-cpu", "softmax", "rest", "F241"),
]


@pytest.mark.parametrize(("preset", "op", "action", "why"), RULES, ids=[f"{p}-{o}" for p, o, _, _ in RULES])
def test_rules(preset, op, action, why):
    assert Policy.load(preset).rule(op).action == action, why


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the lists follow what torch 2.13 registers")
@pytest.mark.parametrize("device", ["CPU", "CUDA", "XPU"])
def test_every_op_that_torch_registers_is_listed_d32(device):
    registered = torch._C._dispatch_get_registrations_for_dispatch_key(f"Autocast{device}")
    ops = {re.fullmatch(r"aten::(\w+)(?:\.\w+)?", name)[1] for name in registered}
    policy = Policy.load(f"torch-{device.lower()}")
    assert len(ops) > 80
    assert {op for op in ops if policy.rule(op).action == "rest"} == set()


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the lists follow what torch 2.13 registers")
@pytest.mark.parametrize("device", ["CPU", "CUDA", "XPU"])
def test_what_is_listed_is_registered_or_a_python_name_f241(device):
    registered = torch._C._dispatch_get_registrations_for_dispatch_key(f"Autocast{device}")
    ops = {name for each in registered for name in (each[6:], each[6:].partition(".")[0])}
    listed = {op for names in Policy.load(f"torch-{device.lower()}").lists.values() for op in names}
    python = set(
        "__matmul__ __pow__ __rdiv__ __rpow__ __rtruediv__ GRUCell LSTMCell RNNCell multi_dot cross_entropy normalize"
        " softmin grid_sample".split()
    )  # F127
    assert listed - ops <= python
