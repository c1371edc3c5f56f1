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
    "torch-cuda": ((23, 35), (51, 72), (10, 11)),  # F240
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
    ("torch-cpu", "mkldnn_rnn_layer", "lower", "F128"),
    ("torch-cpu", "lstm", "rest", "D41: a device decides what it is made of"),
    ("torch-cuda", "_cudnn_rnn", "lower", "D32"),
    ("torch-cpu", "softmax", "rest", "F241"),
]


@pytest.mark.parametrize(("preset", "op", "action", "why"), RULES, ids=[f"{p}-{o}" for p, o, _, _ in RULES])
def test_rules(preset, op, action, why):
    assert Policy.load(preset).rule(op).action == action, why


@pytest.mark.parametrize("device", ["CPU", "CUDA", "XPU"])
def test_every_op_that_torch_registers_is_listed_d32(device):
    registered = torch._C._dispatch_get_registrations_for_dispatch_key(f"Autocast{device}")
    ops = {re.fullmatch(r"aten::(\w+)(?:\.\w+)?", name)[1] for name in registered}
    policy = Policy.load(f"torch-{device.lower()}")
    assert len(ops) > 80
    assert {op for op in ops if policy.rule(op).action == "rest"} == set()


@pytest.mark.parametrize("device", ["CPU", "CUDA", "XPU"])
def test_what_is_listed_is_registered_or_a_python_name_f241(device):
    registered = torch._C._dispatch_get_registrations_for_dispatch_key(f"Autocast{device}")
    ops = {name for each in registered for name in (each[6:], each[6:].partition(".")[0])}
    listed = {op for names in Policy.load(f"torch-{device.lower()}").lists.values() for op in names}
    python = set(
        "__matmul__ __pow__ __rdiv__ __rpow__ __rtruediv__ GRUCell LSTMCell RNNCell multi_dot cross_entropy normalize"
        " softmin grid_sample".split()
    )  # F127
    if device == "CUDA":
        python |= {"_cudnn_rnn"}  # which builds with CUDA register
    assert listed - ops <= python


# Files of edits for a version of torch, beside the lists of a preset.
EDITS = sorted(path for path in LISTS.glob("*/*.*.txt"))


@pytest.mark.parametrize("path", EDITS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_edits_for_a_version_name_it_and_edit(path):
    title, side, major, minor = re.fullmatch(r"(\w+)\.(since|before)-(\d+)\.(\d+)\.txt", path.name).groups()
    version = f"{major}.{minor}" if side == "since" else f"{major}.{int(minor) - 1}"
    assert f"torch {version}" in path.read_text().splitlines()[0]
    listed = {*names_in(read(path.parent.name, title))}
    for name in names_in(path.read_text()):
        assert (name[1:] in listed) == (name[0] == "-"), name


# Edits to the fp32 list {exp, log} of a policy on disk; every torch is newer than 1.0 and 2.0, and older than 98.0 and 99.0.
EDITED = [
    ({}, {"exp", "log"}),
    ({"fp32.since-1.0": "+sin"}, {"exp", "log", "sin"}),
    ({"fp32.before-99.0": "+sin"}, {"exp", "log", "sin"}),
    ({"fp32.since-99.0": "+sin"}, {"exp", "log"}),
    ({"fp32.before-1.0": "+sin"}, {"exp", "log"}),
    ({"fp32.since-1.0": "-exp", "fp32.since-2.0": "+sin\n-log"}, {"sin"}),
    ({"fp32.since-1.0": "+sin", "fp32.since-2.0": "-sin"}, {"exp", "log"}),
    ({"fp32.before-99.0": "+sin", "fp32.before-98.0": "-sin"}, {"exp", "log"}),
    ({"lower.since-1.0": "+exp"}, {"log"}),
    ({"fp32.since-1.0": "# nothing yet"}, {"exp", "log"}),
    ({"notes.since-1.0": "not a list"}, {"exp", "log"}),
]


def policy_folder(place, edits):
    (place / "policy.toml").write_text('low_dtype = "bfloat16"\nrest = "inputs"\n')
    lists = {"lower": "mm\n", "fp32": "exp\nlog\n", "promote": ""}
    for name, text in {**lists, **edits}.items():
        (place / f"{name}.txt").write_text(text)
    return place


@pytest.mark.parametrize(("edits", "expected"), EDITED, ids=[",".join(edits) or "none" for edits, _ in EDITED])
def test_edits_for_the_torch_that_is_installed(tmp_path, edits, expected):
    assert {*Policy.load(policy_folder(tmp_path, edits)).lists["fp32"]} == expected


def test_edits_are_named_where_a_rule_comes_from(tmp_path):
    rule = Policy.load(policy_folder(tmp_path, {"fp32.since-1.0": "# newer\n+sin\n"})).rule("sin")
    assert (rule.file, rule.line) == (str(tmp_path / "fp32.since-1.0.txt"), 2)


def test_edits_limited_to_modules(tmp_path):
    policy = Policy.load(policy_folder(tmp_path, {"fp32.since-1.0": "+mul in head\n"}))
    assert str(policy).endswith(" limited=fp32:mul:head")


WRONG_EDITS = [
    ("fp32.since-2", "+sin", r"fp32.since-2.txt: the name of a file with edits for a version of torch must be LIST.since-2.N.txt or LIST.before-2.N.txt"),
    ("fp32.after-2.15", "+sin", r"fp32.after-2.15.txt: the name of a file with edits"),
    ("fp32.since-1.0", "sin", r"fp32.since-1.0.txt: its names must begin with \+ or -, because they edit fp32.txt"),
    ("fp32.since-99.0", "sin", r"fp32.since-99.0.txt: its names must begin with \+ or -"),
    ("fp32.since-1.0", "+sin\nmul in head", r"fp32.since-1.0.txt:2: "),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "message"), WRONG_EDITS, ids=[f"{n}:{t}" for n, t, _ in WRONG_EDITS])
def test_wrong_edits_are_an_error(tmp_path, name, text, message):
    with pytest.raises(ValueError, match=message):
        Policy.load(policy_folder(tmp_path, {name: text}))


def test_unknown_names_in_edits_warn(tmp_path):
    with pytest.warns(UserWarning, match=r"fp32.since-1.0.txt:1: 'sinn' is not an op of torch"):
        Policy.load(policy_folder(tmp_path, {"fp32.since-1.0": "+sinn\n"}))
