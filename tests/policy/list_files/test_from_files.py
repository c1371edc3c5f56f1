"""Policy.from_files, where a user's own name wins over the built-in lists (D39), and what the environment makes of files (D30)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from habana_mp import Policy
from habana_mp import hmp as package
from habana_mp._policy.folder import write_folder

BF16, F16 = torch.bfloat16, torch.float16


# --- D39: a user's own name wins over the built-in lists

# id: user's lists, edits; op -> its action under the preset hmp, and with them
OWN = {
    "D39 reflected": ({"fp32": "sub\n"}, [], {"__rsub__": ("promote", "fp32"), "rsub": ("promote", "fp32")}),
    "not of the plain form": (
        {"lower": "+rsub\n"},
        [],
        {"sub": ("promote", "promote"), "__rsub__": ("promote", "lower")},
    ),
    "nor of the one that is not in place": ({"fp32": "+add_\n"}, [], {"add": ("promote", "promote")}),
    "an edit of a reflected form": (
        {},
        ["+rsub:fp32"],
        {"sub": ("promote", "promote"), "__rsub__": ("promote", "fp32")},
    ),
    "taken out": ({}, ["-add_"], {"add": ("promote", "promote")}),
    "in place": ({"fp32": "add\n"}, [], {"__iadd__": ("promote", "fp32"), "add": ("promote", "fp32")}),
    "an edit of a file": ({"lower": "+sub\n"}, [], {"__rsub__": ("promote", "lower"), "mm": ("lower", "lower")}),
    "an edit": ({}, ["+sub:fp32"], {"__rsub__": ("promote", "fp32"), "subtract": ("promote", "fp32")}),
    "an edit that takes out": ({}, ["-sub"], {"__rsub__": ("promote", "rest"), "sub": ("promote", "rest")}),
    "for one low dtype": ({"fp32": "+sub@bfloat16\n"}, [], {"__rsub__": ("promote", "fp32")}),
    "for the other": ({"fp32": "+sub@float16\n"}, [], {"__rsub__": ("promote", "promote")}),
    "the promote list, too": ({"promote": "+mm\n"}, [], {"mm": ("lower", "promote"), "bmm": ("lower", "lower")}),
    "D16 among one's own": (
        {"fp32": "sub\n", "promote": "rsub\n"},
        [],
        {"__rsub__": ("promote", "promote"), "sub": ("promote", "fp32")},
    ),
    "what it is made of stays": ({"fp32": "linear\n"}, [], {"addmm": ("lower", "lower"), "linear": ("lower", "fp32")}),
    "a name of C++": ({"fp32": "native_layer_norm\n"}, [], {"layer_norm": ("lower", "fp32")}),
}


@pytest.mark.parametrize("case", OWN)
def test_d39_ones_own_names_win(case, written):
    lists, edits, expected = OWN[case]
    files = {title: written(text, f"{title}.txt") for title, text in lists.items()}
    policy = Policy.from_files(**files).with_edits(*edits) if edits else Policy.from_files(**files)
    base = Policy.load("hmp")
    assert {op: (base.rule(op).action, policy.rule(op).action) for op in expected} == expected


@pytest.mark.parametrize(
    ("base", "op", "names", "other"),
    [
        ("balanced", "matmul", ["matmul", "__matmul__", "__rmatmul__", "linalg_matmul"], "mm"),
        ("balanced", "conv2d", ["conv2d"], "conv1d"),
        ("hmp", "matmul@bfloat16", ["matmul", "__matmul__"], "linear"),
    ],
)
def test_what_an_edit_of_a_list_takes_out_leaves_it_by_all_names(base, op, names, other, written):
    """``__matmul__`` stayed in the list and decided matmul, as did ``_convolution`` for conv2d."""
    before, policy = Policy.load(base), Policy.from_files(lower=written(f"-{op}\n"), base=base)
    assert {name: before.rule(name).action for name in [*names, other]} == dict.fromkeys([*names, other], "lower")
    assert {name: policy.rule(name).action for name in names} == dict.fromkeys(names, "rest")
    assert policy.rule(other).action == "lower"
    assert policy == before.with_edits(f"-{op}")


def test_a_list_for_one_version_of_torch_takes_out_the_name_alone(tmp_path):
    """It has the author of the other names: torch 2.14 has no cholesky for the device, and linalg_cholesky as before."""
    write_folder(tmp_path, Policy.from_ops(fp32=["cholesky", "linalg_cholesky"])._core, "")
    (tmp_path / "fp32.since-2.0.txt").write_text("-cholesky\n")
    assert Policy.load(tmp_path).lists["fp32"] == ("linalg_cholesky",)


def test_d39_over_the_error_list(written):
    """The preset for CUDA refuses binary_cross_entropy; whoever lists it has decided."""
    assert Policy.load("torch-cuda").rule("binary_cross_entropy").action == "error"
    policy = Policy.from_files(fp32=written("+binary_cross_entropy\n"), base="torch-cuda")
    assert policy.rule("binary_cross_entropy").action == "fp32"


def test_d39_in_a_call(written):
    x = torch.ones(2, dtype=BF16)
    package.convert(fp32_file_path=written("sub\n"))
    assert (1 - x).dtype == (x - 1).dtype == torch.float32
    package.revert()
    with package.autocast("cpu", policy=Policy.from_files(fp32=written("sub\n"))):
        assert (1 - x).dtype == (x - 1).dtype == torch.float32


@pytest.mark.parametrize("claimed", ["add@float16", "add"])
def test_base_with_entries_for_one_low_dtype(claimed, written):
    base = Policy.from_ops(lower=["mm@float16"], fp32=["add@float16", "mm@bfloat16"])
    policy = Policy.from_files(written(claimed), base=base)
    assert {title: ops for title, ops in policy.lists.items() if ops} == {"lower": (claimed,), "fp32": ("mm@bfloat16",)}


def test_entries_for_one_low_dtype_of_the_environment_d30(written):
    code = (
        "import torch; from habana_mp import hmp; x = torch.ones(2, 2)\n"
        "with hmp.autocast('hpu'): print(torch.mm(x, x).dtype, torch.add(x, x).dtype, torch.bmm(x[None], x[None]).dtype)"
    )
    environment = {**os.environ, "LOWER_LIST": str(written("-mm@bfloat16\n+add@bfloat16\n-bmm@float16\n"))}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["torch.float32", "torch.bfloat16", "torch.bfloat16"]


def test_f51_an_op_left_out_of_fp32_falls_to_promote(written):
    policy = Policy.from_files(fp32=written("log\n"), base="hpu-autocast")
    assert policy.rule("div").action == "promote"


def test_from_files_base_and_promote(written):
    policy = Policy.from_files(promote=written("+exp\n-add\n"), base="hmp-resnet50", low_dtype=F16)
    resnet = Policy.load("hmp-resnet50")
    assert set(policy.lists["promote"]) == set(resnet.lists["promote"]) - {"add", "iadd"} | {"exp"}
    assert {name: policy.lists[name] for name in ("lower", "fp32")} == {
        name: resnet.lists[name] for name in ("lower", "fp32")
    }
    assert (policy.low_dtype, policy.name) == (F16, "hmp-resnet50+files")
    again = Policy.from_files(lower=written("mm\n"), base=policy)
    assert (again.low_dtype, again.lists["promote"], again.name) == (F16, policy.lists["promote"], policy.name)


def test_an_overload_beside_its_op_is_fine_for_a_policy(written):
    policy = Policy.from_files(written("pow.Tensor_Scalar\n", "low.txt"), written("pow\n", "fp32.txt"))
    assert policy.rule("pow.Tensor_Scalar").action == "lower"
