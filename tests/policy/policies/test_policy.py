"""Policy as a value, and where policies come from: folders, texts and lists of ops."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from habana_mp import Policy, hmp, presets

EVERY = (*presets(), "cpu", "cuda")
NONE = dict.fromkeys(("lower", "fp32", "promote", "weight_int8", "int8", "error"), ())


# --- the value


@pytest.mark.parametrize("name", EVERY)
def test_text_round_trips(name):
    policy = Policy.load(name)
    text = str(policy)
    again = Policy.load(text)
    assert "\n" not in text
    assert again == policy
    assert (str(again), hash(again), again.name) == (text, hash(policy), policy.name)


def test_text_of_a_small_policy():
    policy = Policy.from_ops(lower=["mm", "bmm"], fp32=["softmax"], name="mine")
    assert str(policy) == "name=mine low_dtype=bfloat16 rest=inputs lower=bmm,mm fp32=softmax promote= error="
    assert repr(policy) == "<Policy mine: bfloat16, 2 lower, 1 fp32, rest=inputs>"


def test_equality_sees_what_casts_alike():
    policy = Policy.from_ops(lower=["mm", "bmm"])
    assert policy == Policy.from_ops(lower=["bmm", "mm", "mm"], name="other")
    assert hash(policy) == hash(Policy.from_ops(lower=["bmm", "mm"], name="other"))
    assert policy != Policy.from_ops(lower=["mm", "bmm"], low_dtype=torch.float16)
    assert policy != Policy.from_ops(lower=["mm", "bmm"], rest="fp32")
    assert policy != Policy.from_ops(fp32=["mm", "bmm"])
    assert policy != str(policy)
    assert policy != Policy.from_ops(lower=["mm", "bmm@bfloat16"])
    assert len({policy, Policy.from_ops(lower=["bmm", "mm"])}) == 1


def test_no_two_presets_are_equal():
    assert len({Policy.load(name) for name in presets()}) == len(presets())


def test_is_frozen():
    policy = Policy.load("hmp")
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.name = "other"
    policy.lists["lower"] = ()
    assert len(policy.lists["lower"]) == 25


@pytest.mark.parametrize("name", EVERY)
def test_pickles_and_copies_with_its_places(name):
    policy = Policy.load(name)
    again = pickle.loads(pickle.dumps(policy))
    assert again == policy
    assert again.name == policy.name
    assert again.rule("mm") == policy.rule("mm")
    assert [each.place for each in again._core.entries] == [each.place for each in policy._core.entries]
    assert copy.deepcopy(policy) is policy
    assert copy.copy(policy) is policy


# --- rule


def test_rule_says_what_and_where():
    rule = Policy.load("hmp").rule("__matmul__")
    assert (rule.op, rule.action, rule.low_dtype, rule.listed_as) == ("__matmul__", "lower", torch.bfloat16, "matmul")
    path = Path(rule.file)
    assert path.parts[-3:] == ("lists", "hmp", "lower.txt")
    assert path.read_text().splitlines()[rule.line - 1] == "matmul"
    assert str(rule) == f"__matmul__: lower (bfloat16), listed as matmul in {rule.file}:{rule.line}"


def test_rule_of_the_rest():
    rule = Policy.load("hmp").rule("gelu")
    assert (rule.action, rule.rest, rule.listed_as, rule.file, rule.line) == ("rest", "first_input", None, None, None)
    assert str(rule) == "gelu: in no list, rest=first_input"


@pytest.mark.parametrize(
    ("op", "error", "said"),
    [
        ("lineer", ValueError, r"^'lineer' is not an op of torch .*Did you mean 'linear'"),
        ("my_op", ValueError, "^'my_op' is not an op of torch"),
        (3, TypeError, "^rule takes the name of an op, such as 'mm', not 3$"),
    ],
)
def test_rule_of_what_is_no_op(op, error, said):
    """It was that of the rest, which reads like an answer."""
    with pytest.raises(error, match=said):
        Policy.load("hmp").rule(op)


def test_rule_of_a_name_with_its_module():
    rule = Policy.load("hmp").rule("torch.nn.functional.linear")
    assert (rule.op, rule.action) == ("linear", "lower")


def test_rule_given_in_code():
    assert str(Policy.from_ops(promote=["add"]).rule("add")) == "add: promote, listed as add in code"


def test_rule_of_an_error():
    rule = Policy.load("cuda").rule("binary_cross_entropy")
    assert (rule.action, Path(rule.file).name, rule.line) == ("error", "policy.toml", None)


def test_rule_of_an_overload_d17():
    policy = Policy.from_ops(lower=["pow.Tensor_Scalar"])
    assert policy.rule("pow").listed_as == "pow.Tensor_Scalar"
    assert policy.rule("pow.Tensor_Scalar").action == "lower"


# --- load


def test_load_a_folder_in_the_form_of_the_presets(tmp_path):
    (tmp_path / "policy.toml").write_text('low_dtype = "float16"\nrest = "fp32"\nerror = ["binary_cross_entropy"]\n')
    for name, text in (("lower", "mm # GEMM\n"), ("fp32", ""), ("promote", "add\n")):
        (tmp_path / f"{name}.txt").write_text(text)
    for path in (tmp_path, str(tmp_path)):
        policy = Policy.load(path)
        assert (policy.name, policy.low_dtype, policy.rest) == (tmp_path.name, torch.float16, "fp32")
        assert policy.lists == {
            **NONE,
            "lower": ("mm",),
            "promote": ("add",),
            "error": ("binary_cross_entropy",),
        }
        assert policy.rule("mm").file == str(tmp_path / "lower.txt")


@pytest.mark.parametrize("text", ["hpm", "", "no/such/folder", "name=x", "HMP"])
def test_load_names_what_is_accepted(text):
    with pytest.raises(
        ValueError, match=r"Accepted are a preset \(balanced, hmp, hmp-o1, .*\), a folder with policy.toml"
    ):
        Policy.load(text)


def test_load_of_a_path_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Policy.load(tmp_path / "nowhere")


def test_load_refuses_a_text_with_a_mistake():
    with pytest.raises(ValueError, match="'fp32=' expected, found 'fp16=softmax'"):
        Policy.load("name=x low_dtype=bfloat16 rest=inputs lower=mm fp16=softmax promote= error=")


@given(st.text(max_size=80))
def test_load_of_any_text_loads_or_is_refused(text):
    for candidate in (text, "name=x low_dtype=bfloat16 rest=inputs " + text):
        try:
            policy = Policy.load(candidate)
        except (ValueError, OSError):  # OSError of "." and the like: a folder without a policy
            continue
        assert Policy.load(str(policy)) == policy


# --- from_ops


def test_from_ops():
    policy = Policy.from_ops(["linear"], ("softmax",), {"add"}, low_dtype=torch.float16, rest="first_input")
    assert policy.name == "custom"
    assert policy.low_dtype == torch.float16
    assert policy.rest == "first_input"
    assert policy.lists == {**NONE, "lower": ("linear",), "fp32": ("softmax",), "promote": ("add",)}


def test_from_ops_of_nothing_is_a_policy():
    assert repr(Policy.from_ops()) == "<Policy custom: bfloat16, no lists, rest=inputs>"


def test_from_files_takes_paths():
    words = r"^lower takes the path of a list file, not \['linear'\]. Policy.from_ops takes lists of names$"
    with pytest.raises(TypeError, match=words):
        Policy.from_files(lower=["linear"])


BAD_OPS = {
    "one string": ({"lower": "relu"}, TypeError, "lower must be a list of op names, not the one name 'relu'"),
    "a function": (
        {"fp32": ["mm", len]},
        TypeError,
        "fp32 must be a list of op names such as 'relu', and has <built-in",
    ),
    "a name that is no string": ({"name": 3}, TypeError, "name must be a string, not 3"),
    "a rest that is no string": ({"rest": None}, TypeError, "rest must be a string, not None"),
    "no op name": ({"lower": ["aten::mm"]}, ValueError, "'aten::mm' is not an op name"),
    "D23": (
        {"lower": ["mm"], "fp32": ["mm"]},
        ValueError,
        r"^'mm' is in the lower list and in the fp32 list\. An op can",
    ),
    "a class with its package": ({"lower": ["torch.nn.Linear"]}, ValueError, "^'torch.nn.Linear' is not an op name"),
    "D23 for one low dtype": (
        {"lower": ["mm@float16"], "fp32": ["mm@float16"]},
        ValueError,
        "^'mm@float16' is in the lower list and in the fp32 list",
    ),
    "a dtype that is not low": (
        {"lower": ["mm@float64"]},
        ValueError,
        "'mm@float64' is not an entry of a list. After @, float16 or bfloat16 is accepted",
    ),
    "rest": ({"rest": "low"}, ValueError, "first_input, fp32 or inputs"),
    "rest of a list": ({"rest": "lower"}, ValueError, "first_input, fp32 or inputs"),
    "float32 is not low": (
        {"low_dtype": torch.float32},
        ValueError,
        r"torch.bfloat16 or torch.float16, or its name \(bfloat16, bf16, float16 or fp16\), not torch.float32",
    ),
    "a dtype by name": ({"low_dtype": "float32"}, ValueError, r"torch.float16, or its name \(.*\), not 'float32'"),
    "name": ({"name": "my policy"}, ValueError, "'my policy' is not a policy name"),
    "strict": (
        {"fp32": ["sofmax"], "strict": True},
        ValueError,
        "'sofmax' is not an op of torch .*. Did you mean 'softmax'",
    ),
}


@pytest.mark.parametrize("case", BAD_OPS)
def test_from_ops_refuses(case):
    arguments, error, message = BAD_OPS[case]
    with pytest.raises(error, match=message):
        Policy.from_ops(**arguments)


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("nn.Linear", "linear"),
        ("RMSNorm", "rms_norm"),
        ("nn.LayerNorm", "layer_norm"),
        ("ReLU", "relu"),
        ("F.gelu", "gelu"),
    ],
)
def test_a_class_in_place_of_an_op_is_reported_with_the_op(name, op):
    with pytest.raises(ValueError, match=rf"^'{name}' is not an op of torch .* Did you mean '{op}'\?$"):
        Policy.from_ops(lower=[name], strict=True)


def test_from_ops_warns_of_names_that_torch_lacks():
    with pytest.warns(UserWarning, match="names without effect in the lower list:\n'lienar' is not an op") as warned:
        Policy.from_ops(lower=["lienar", "mm"])
    assert [Path(warning.filename).name for warning in warned] == ["test_policy.py"]


# --- what the import costs


def test_import_reads_no_list():
    code = "import sys, torch; before = set(sys.modules); import habana_mp; print(*(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "habana_mp._policy.policy" in loaded
    assert {"tomllib", "tomli", "difflib"} & set(loaded) == set()


def test_the_error_list_of_a_folder_is_checked_d22(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text('low_dtype = "bfloat16"\nrest = "inputs"\nerror = ["mmm"]\n')
    for name in ("lower", "fp32", "promote"):
        (tmp_path / f"{name}.txt").write_text("")
    with pytest.warns(UserWarning, match="mmm"):
        hmp.Policy.load(tmp_path)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda policy: policy.with_edits(["+mm:lower"]), id="edits-in-a-list"),
        pytest.param(lambda policy: policy.with_edits(None), id="no-edit"),
        pytest.param(lambda policy: type(policy)("hmp"), id="a-name-to-the-constructor"),
    ],
)
def test_wrong_types_are_reported(make) -> None:
    with pytest.raises(TypeError, match=r"make a policy with|edit of a policy must be a string"):
        make(hmp.Policy.load("hmp"))


def test_several_edits_at_once_are_explained() -> None:
    with pytest.raises(TypeError, match=r"several are given one by one, with_edits\(\*edits\)$"):
        hmp.Policy.load("hmp").with_edits(["+mm:lower"])


def test_a_preset_is_kept_for_its_class() -> None:
    class Own(Policy):
        pass

    assert type(Own.load("hmp-o1")) is Own
    assert type(Policy.load("hmp-o1")) is Policy
    assert Policy.load("hmp-o1") is Policy.load("hmp-o1")
