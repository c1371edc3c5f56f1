"""Policy as a value, where policies come from, and decide() against a second reading of D10 to D15."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import habana_mp._core as _core
from habana_mp import Policy, hmp, presets

EVERY = (*presets(), "cpu", "cuda")


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


def test_rule_given_in_code():
    assert str(Policy.from_ops(promote=["add"]).rule("add")) == "add: promote, listed as add in code"


def test_rule_of_an_error():
    rule = Policy.load("cuda").rule("binary_cross_entropy")
    assert (rule.action, Path(rule.file).name, rule.line) == ("error", "policy.toml", None)


def test_rule_of_an_overload_d17():
    policy = Policy.from_ops(lower=["pow.Tensor_Scalar"])
    assert policy.rule("pow").listed_as == "pow.Tensor_Scalar"
    assert policy.rule("pow.Tensor_Scalar").action == "lower"


# --- entries for one low dtype

BFLOAT16, FLOAT16 = torch.bfloat16, torch.float16


def actions(policy: Policy, op: str) -> tuple[str, str]:
    """What a policy says of an op as bfloat16 and as float16."""
    return policy.with_low_dtype(BFLOAT16).rule(op).action, policy.with_low_dtype(FLOAT16).rule(op).action


def test_an_entry_for_one_low_dtype():
    policy = Policy.from_ops(lower=["mm", "layer_norm@bfloat16"], fp32=["layer_norm@float16"])
    assert actions(policy, "layer_norm") == ("lower", "fp32")
    assert actions(policy, "mm") == ("lower", "lower")
    assert policy.lists["lower"] == ("layer_norm@bfloat16", "mm")
    assert policy.rule("layer_norm").listed_as == "layer_norm@bfloat16"
    assert str(policy.with_low_dtype(FLOAT16).rule("layer_norm")) == (
        "layer_norm: fp32, listed as layer_norm@float16 in code"
    )
    assert policy.with_low_dtype(FLOAT16).with_low_dtype(BFLOAT16) == policy
    assert hash(policy) != hash(policy.with_low_dtype(FLOAT16))


# id: lists, then what they say of pow as bfloat16 and as float16: of the op, and of its overload Tensor_Scalar
CONDITIONS = {
    "over the other list": ({"lower": ["pow"], "fp32": ["pow@float16"]}, ("lower", "fp32"), ("lower", "fp32")),
    "over an earlier list": ({"fp32": ["pow"], "promote": ["pow@float16"]}, ("fp32", "promote"), ("fp32", "promote")),
    "where it does not hold": ({"lower": ["pow@float16"]}, ("rest", "lower"), ("rest", "lower")),
    "of the op over an overload": (
        {"lower": ["pow.Tensor_Scalar"], "fp32": ["pow@float16"]},
        ("lower", "fp32"),
        ("lower", "fp32"),
    ),
    "of an overload over the op": (
        {"lower": ["pow"], "fp32": ["pow.Tensor_Scalar@float16"]},
        ("lower", "fp32"),  # D17: the overload is the whole op
        ("lower", "fp32"),
    ),
    "of another overload": (
        {"lower": ["pow"], "fp32": ["pow.Tensor_Tensor@float16"]},
        ("lower", "fp32"),
        ("lower", "fp32"),
    ),
    "in both lists": ({"lower": ["pow@float16"], "fp32": ["pow@bfloat16"]}, ("fp32", "lower"), ("fp32", "lower")),
}


@pytest.mark.parametrize("case", CONDITIONS)
def test_conditions(case):
    lists, of_op, of_overload = CONDITIONS[case]
    policy = Policy.from_ops(**lists)
    assert actions(policy, "pow") == of_op
    assert actions(policy, "__pow__") == of_op
    assert actions(policy, "pow.Tensor_Scalar") == of_overload


@pytest.mark.parametrize("low", [BFLOAT16, FLOAT16])
def test_conditions_round_trip(low):
    policy = Policy.from_ops(
        ["mm@float16", "pow.Tensor_Scalar@bfloat16"], ["mm"], ["add@float16"], low_dtype=low, name="mine"
    )
    dtype = str(low).removeprefix("torch.")
    assert str(policy) == (
        f"name=mine low_dtype={dtype} rest=inputs lower=mm@float16,pow.Tensor_Scalar@bfloat16 fp32=mm promote=add@float16 error="
    )
    again = Policy.load(str(policy))
    assert (again, hash(again), str(again)) == (policy, hash(policy), str(policy))
    assert pickle.loads(pickle.dumps(policy)) == policy


# id: edits of this policy, then what it says of softmax and of mm as bfloat16 and as float16
EDITED = Policy.from_ops(lower=["mm", "pow.Tensor_Scalar"], fp32=["softmax"], promote=["add@float16"])
EDITS = {
    "put in": (["+softmax@float16:lower"], {"softmax": ("fp32", "lower"), "mm": ("lower", "lower")}),
    "take out": (["-mm@bfloat16"], {"mm": ("rest", "lower")}),
    "take out both": (["-mm@bfloat16", "-mm@float16"], {"mm": ("rest", "rest")}),
    "take out all": (["-add"], {"add": ("rest", "rest")}),
    "take out what is not there": (["-add@bfloat16"], {"add": ("rest", "promote")}),
    "put over a condition": (["+add:fp32"], {"add": ("fp32", "fp32")}),
    "put beside a condition": (["+add@bfloat16:fp32"], {"add": ("fp32", "promote")}),
    "over an overload": (["+pow@float16:fp32"], {"pow": ("lower", "fp32"), "pow.Tensor_Scalar": ("lower", "fp32")}),
    "over another name": (
        ["+multiply:lower", "+mul@float16:fp32"],
        {"mul": ("lower", "fp32"), "multiply": ("lower", "fp32")},
    ),
    "an overload": (
        ["+pow:lower", "+pow.Tensor_Scalar@float16:fp32", "-pow.Tensor_Tensor@float16"],
        {"pow": ("lower", "fp32"), "pow.Tensor_Scalar": ("lower", "fp32")},
    ),
    "twice": (["+mm@float16:fp32", "+mm@float16:promote"], {"mm": ("lower", "promote")}),
}


@pytest.mark.parametrize("case", EDITS)
def test_edits_for_one_low_dtype(case):
    edits, expected = EDITS[case]
    edited = EDITED.with_edits(*edits)
    assert {op: actions(edited, op) for op in expected} == expected
    assert actions(edited, "gelu") == ("rest", "rest")


@pytest.mark.parametrize("edit", ["+mm@float64:fp32", "-mm@", "+mm:fp32@float16", "-mm@float16:fp32", "+@float16:fp32"])
def test_edits_that_are_refused(edit):
    with pytest.raises(ValueError, match=f"^'{re.escape(edit)}' is no edit of a policy: .* op@float16 or op@bfloat16"):
        EDITED.with_edits(edit)


def test_with_edits_looks_up_the_name_d22():
    with pytest.raises(ValueError, match=r"^'lienar' is no op of torch .*did you mean 'linear'"):
        EDITED.with_edits("+lienar@float16:lower", strict=True)


def test_an_error_for_one_low_dtype(tmp_path):
    folder = preset_folder(tmp_path, GOOD + 'error = ["mm@float16"]\n')
    assert actions(Policy.load(folder), "mm") == ("lower", "error")


# --- low_dtypes and cached

LIMITED = 'low_dtype = "bfloat16"\nrest = "inputs"\nlow_dtypes = ["bfloat16"]\ncache = false\n'


def test_low_dtypes_and_cached():
    assert (Policy.load("hmp").low_dtypes, Policy.load("hmp").cached) == ((BFLOAT16, FLOAT16), True)
    assert (Policy.load("torch-cuda").low_dtypes, Policy.load("torch-cuda").cached) == ((BFLOAT16, FLOAT16), True)
    assert (Policy.from_ops().low_dtypes, Policy.from_ops().cached) == ((BFLOAT16, FLOAT16), True)
    hpu = Policy.load("hpu-autocast")  # D29
    assert (hpu.low_dtypes, hpu.cached) == ((BFLOAT16,), False)
    assert str(hpu).startswith(
        "name=hpu-autocast low_dtype=bfloat16 low_dtypes=bfloat16 rest=inputs cache=false lower="
    )


MADE = {
    "text": lambda policy, _: Policy.load(str(policy)),
    "pickle": lambda policy, _: pickle.loads(pickle.dumps(policy)),
    "with_edits": lambda policy, _: policy.with_edits("-mm"),
    "with_low_dtype": lambda policy, _: policy.with_low_dtype(FLOAT16),
    "from_files": lambda policy, path: Policy.from_files(path, base=policy),
    "from_files of a float16": lambda policy, path: Policy.from_files(path, base=policy, low_dtype=FLOAT16),
}


@pytest.mark.parametrize("how", MADE)
def test_low_dtypes_and_cached_are_kept(how, tmp_path):
    made = MADE[how](Policy.load(preset_folder(tmp_path, LIMITED)), tmp_path / "lower.txt")
    assert (made.low_dtypes, made.cached) == ((BFLOAT16,), False)


def test_low_dtypes_and_cached_count():
    text = "name=x low_dtype=bfloat16{} rest=inputs{} lower=mm fp32= promote= error="
    policies = [
        Policy.load(text.format(low, cache)) for low in ("", " low_dtypes=bfloat16") for cache in ("", " cache=false")
    ]
    assert len(set(policies)) == 4
    assert len({hash(policy) for policy in policies}) == 4
    assert Policy.load(text.format(" low_dtypes=bfloat16,float16", " cache=true")) == policies[0]


# --- in force, by either front end


def dtypes() -> tuple[torch.dtype, ...]:
    """What mm and prod run in here."""
    return torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype, torch.prod(torch.ones(2, dtype=BFLOAT16)).dtype


ONE_OR_THE_OTHER = Policy.from_ops(lower=["mm", "prod@bfloat16"], fp32=["mm@float16", "prod@float16"])


def test_convert_follows_the_low_dtype():
    hmp.convert(policy=ONE_OR_THE_OTHER)
    assert dtypes() == (BFLOAT16, BFLOAT16)
    hmp.convert(policy=ONE_OR_THE_OTHER, low_precision_type=FLOAT16)
    assert dtypes() == (torch.float32, torch.float32)
    assert hmp.explain("mm").rule.listed_as == "mm@float16"
    assert str(hmp.explain("mm")).splitlines()[1] == "  rule       fp32, listed as mm@float16 in code"
    assert set(hmp.explain("mm").homes.values()) == {"float32"}


def test_convert_follows_the_low_dtype_in_files(tmp_path):
    (tmp_path / "lower.txt").write_text("mm\nprod@bfloat16\n")
    (tmp_path / "fp32.txt").write_text("mm@float16\nprod@float16\n")
    files = {"bf16_file_path": tmp_path / "lower.txt", "fp32_file_path": tmp_path / "fp32.txt"}
    hmp.convert(**files)
    assert dtypes() == (BFLOAT16, BFLOAT16)
    hmp.convert(**files, low_precision_type=FLOAT16)
    assert dtypes() == (torch.float32, torch.float32)


def test_autocast_follows_the_low_dtype():
    with hmp.autocast("cpu", policy=ONE_OR_THE_OTHER):
        assert dtypes() == (BFLOAT16, BFLOAT16)
        with hmp.autocast("cpu", FLOAT16, policy=ONE_OR_THE_OTHER):
            assert dtypes() == (torch.float32, torch.float32)
            assert hmp.explain("mm").homes["aten::mm"] == "float32"
        assert hmp.explain("mm").homes["aten::mm"] == "bfloat16"


def test_autocast_asks_the_policy_what_it_accepts(tmp_path):
    policy = Policy.load(preset_folder(tmp_path, LIMITED)).with_edits("-mm", "+prod@bfloat16:lower")
    name = f"{tmp_path.name}\\+edits"
    with pytest.warns(
        UserWarning, match=f"^In {name} autocast, .*\n{name} .* supports dtypes of torch.bfloat16 currently"
    ):
        region = hmp.autocast("cpu", FLOAT16, policy=policy)
    with region:
        assert dtypes() == (torch.float32, BFLOAT16)


@pytest.mark.parametrize(("cache", "hits"), [("true", 2), ("false", 0)])
@pytest.mark.parametrize("front_end", ["convert", "autocast"])
def test_whether_casts_are_kept(front_end, cache, hits, tmp_path):
    policy = Policy.load(preset_folder(tmp_path, GOOD + f"cache = {cache}\n")).with_edits("-bmm")
    weight = torch.nn.Parameter(torch.ones(256, 256))
    if front_end == "convert":
        hmp.convert(policy=policy)
    region = contextlib.nullcontext() if front_end == "convert" else hmp.autocast("cpu", policy=policy)
    before = hmp.cache.info().hits
    with region, torch.no_grad():
        for _ in range(3):
            torch.mm(torch.ones(2, 256), weight)
    assert hmp.cache.info().hits - before == hits


def test_convert_takes_a_low_dtype_that_autocast_refuses():
    policy = hmp.convert(policy="hpu-autocast", low_precision_type=FLOAT16)
    assert (policy.low_dtype, policy.low_dtypes) == (FLOAT16, (BFLOAT16,))
    assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == FLOAT16


# --- load


def test_load_a_folder_in_the_form_of_the_presets(tmp_path):
    (tmp_path / "policy.toml").write_text('low_dtype = "float16"\nrest = "fp32"\nerror = ["binary_cross_entropy"]\n')
    for name, text in (("lower", "mm # GEMM\n"), ("fp32", ""), ("promote", "add\n")):
        (tmp_path / f"{name}.txt").write_text(text)
    for path in (tmp_path, str(tmp_path)):
        policy = Policy.load(path)
        assert (policy.name, policy.low_dtype, policy.rest) == (tmp_path.name, torch.float16, "fp32")
        assert policy.lists == {"lower": ("mm",), "fp32": (), "promote": ("add",), "error": ("binary_cross_entropy",)}
        assert policy.rule("mm").file == str(tmp_path / "lower.txt")


def preset_folder(folder: Path, description: str, lower: str = "mm\n") -> Path:
    (folder / "policy.toml").write_text(description)
    for name, text in (("lower", lower), ("fp32", ""), ("promote", "")):
        (folder / f"{name}.txt").write_text(text)
    return folder


GOOD = 'low_dtype = "bfloat16"\nrest = "inputs"\n'
BAD_FOLDERS = {
    "no rest": ('low_dtype = "bfloat16"\n', "mm\n", "policy.toml: rest must be given"),
    "rest is no string": ('low_dtype = "bfloat16"\nrest = 3\n', "mm\n", "policy.toml: rest must be given, as a string"),
    "unknown rest": ('low_dtype = "bfloat16"\nrest = "low"\n', "mm\n", "first_input, fp32 or inputs"),
    "unknown dtype": ('low_dtype = "int8"\nrest = "inputs"\n', "mm\n", "bfloat16 or float16"),
    "another rest": ('low_dtype = "bfloat16"\nrest = "none"\n', "mm\n", "policy.toml: .*none"),
    "unknown key": (GOOD + "rset = 1\n", "mm\n", "policy.toml: 'rset' is no key"),
    "no TOML": ("low_dtype = \n", "mm\n", r"policy.toml: .*line 1"),
    "error is no list": (GOOD + 'error = "mm"\n', "mm\n", "error a list of op names"),
    "low_dtypes is no list": (
        GOOD + 'low_dtypes = "bfloat16"\n',
        "mm\n",
        "policy.toml: low_dtypes is a list of bfloat16",
    ),
    "no low_dtypes": (GOOD + "low_dtypes = []\n", "mm\n", "policy.toml: low_dtypes is a list of bfloat16 and float16"),
    "low_dtypes is a number": (GOOD + "low_dtypes = 3\n", "mm\n", "policy.toml: low_dtypes is a list of bfloat16"),
    "other low_dtypes": (GOOD + "low_dtypes = [[1], 2]\n", "mm\n", "policy.toml: low_dtypes is a list of bfloat16"),
    "low_dtype is none of them": (
        GOOD + 'low_dtypes = ["float16"]\n',
        "mm\n",
        "policy.toml: low_dtype is float16, not 'bfloat16'",
    ),
    "cache is no bool": (GOOD + "cache = 0\n", "mm\n", "policy.toml: cache is true or false"),
    "a dtype that is not low": (GOOD, "relu\nmm@float32\n", "lower.txt:2: 'mm@float32' is no entry of a list"),
    "an error for such a dtype": (GOOD + 'error = ["mm@"]\n', "mm\n", "policy.toml: 'mm@' is no entry of a list"),
    "edits": (GOOD, "+mm\n", r"lower.txt: names that begin with \+ or -"),
    "a bad line": (GOOD, "m m\n", "lower.txt:1: 'm m' is no op name"),
    "a bad name": (GOOD + 'name = "a b"\n', "mm\n", "'a b' is no policy name"),
}


@pytest.mark.parametrize("case", BAD_FOLDERS)
def test_load_refuses_a_folder(case, tmp_path):
    description, lower, message = BAD_FOLDERS[case]
    with pytest.raises(ValueError, match=message):
        Policy.load(preset_folder(tmp_path, description, lower))


def test_load_a_folder_with_a_name_that_torch_lacks_d22(tmp_path):
    with pytest.warns(UserWarning, match=r"lower.txt:1: 'lienar' is no op of torch .*did you mean 'linear'"):
        Policy.load(preset_folder(tmp_path, GOOD, "lienar\n"))


@pytest.mark.parametrize("text", ["hpm", "", "no/such/folder", "name=x", "HMP"])
def test_load_names_what_is_accepted(text):
    with pytest.raises(ValueError, match=r"accepted are a preset \(hmp, hmp-o1, .*\), a folder with policy.toml"):
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
    assert policy.lists == {"lower": ("linear",), "fp32": ("softmax",), "promote": ("add",), "error": ()}


def test_from_ops_of_nothing_is_a_policy():
    assert repr(Policy.from_ops()) == "<Policy custom: bfloat16, no lists, rest=inputs>"


BAD_OPS = {
    "one string": ({"lower": "relu"}, TypeError, "lower is a list of op names, not the one name 'relu'"),
    "no op name": ({"lower": ["aten::mm"]}, ValueError, "'aten::mm' is no op name"),
    "D23": ({"lower": ["mm"], "fp32": ["mm"]}, ValueError, "'mm' is in the lower list .* and in the fp32 list"),
    "D23 for one low dtype": (
        {"lower": ["mm@float16"], "fp32": ["mm@float16"]},
        ValueError,
        "'mm@float16' is in the lower list .* and in the fp32 list",
    ),
    "a dtype that is not low": (
        {"lower": ["mm@float64"]},
        ValueError,
        "'mm@float64' is no entry of a list: behind @ float16 or bfloat16 is accepted",
    ),
    "rest": ({"rest": "low"}, ValueError, "first_input, fp32 or inputs"),
    "rest of a list": ({"rest": "lower"}, ValueError, "first_input, fp32 or inputs"),
    "float32 is not low": (
        {"low_dtype": torch.float32},
        ValueError,
        "torch.bfloat16 or torch.float16, or its name, not torch.float32",
    ),
    "a dtype by name": ({"low_dtype": "float32"}, ValueError, "torch.float16, or its name, not 'float32'"),
    "name": ({"name": "my policy"}, ValueError, "'my policy' is no policy name"),
    "strict": (
        {"fp32": ["sofmax"], "strict": True},
        ValueError,
        "'sofmax' is no op of torch .*; did you mean 'softmax'",
    ),
}


@pytest.mark.parametrize("case", BAD_OPS)
def test_from_ops_refuses(case):
    arguments, error, message = BAD_OPS[case]
    with pytest.raises(error, match=message):
        Policy.from_ops(**arguments)


def test_from_ops_warns_of_names_that_torch_lacks():
    with pytest.warns(UserWarning, match="the lower list has names that decide nothing:\n'lienar' is no op") as warned:
        Policy.from_ops(lower=["lienar", "mm"])
    assert [Path(warning.filename).name for warning in warned] == ["test_policy.py"]


# --- what the import costs


def test_import_reads_no_list():
    code = "import sys, torch; before = set(sys.modules); import habana_mp; print(*(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "habana_mp._policy.policy" in loaded
    assert {"tomllib", "tomli", "difflib"} & set(loaded) == set()


# --- decide: a second reading of D10 to D15, written for reading and not for speed

OTHER, F16, BF16, F32, F64 = (
    _core.DTYPES.index(name) for name in ("other", "float16", "bfloat16", "float32", "float64")
)
LOWER, FP32, PROMOTE, FIRST, INPUTS, ERROR = (
    _core.ACTIONS.index(name) for name in ("lower", "fp32", "promote", "first_input", "inputs", "error")
)
INPUT, AFFINE, STATISTIC, TARGET = (_core.ROLES.index(name) for name in ("input", "affine", "statistic", "target"))


def expected(action, low, listed, args, explicit):
    """(cause, dtype, which arguments are cast)"""
    alone = ("none", OTHER, [False] * len(args))
    eligible = [dtype in (F16, BF16, F32) for dtype, _, _ in args]
    if explicit or any(dtype == F64 for dtype, _, _ in args):  # D11, D10
        return alone
    if any(role == TARGET for _, _, role in args):  # D12
        to = next(dtype for dtype, _, role in args if role == TARGET)
        if action == ERROR or (action == INPUTS and not listed) or to not in (F16, BF16, F32):
            return alone
        cause, roles = "in_place", (INPUT, AFFINE)
    elif action == LOWER:  # D14: weights of a norm stay
        cause, to, roles = "lower", low, (INPUT,)
    elif action == FP32:
        # D14: running statistics below float32 take no float32 input.
        if any(ok and role == STATISTIC and dtype != F32 for (dtype, _, role), ok in zip(args, eligible, strict=True)):
            return alone
        cause, to, roles = ("fp32" if listed else "rest_fp32"), F32, (INPUT, AFFINE)
    elif action == PROMOTE:  # D13
        pool = [
            (dtype, zero)
            for (dtype, zero, role), ok in zip(args, eligible, strict=True)
            if ok and role in (INPUT, AFFINE)
        ]
        counting = {dtype for dtype, zero in pool if not zero} or {dtype for dtype, _ in pool}
        cause, to, roles = "promote", (counting.pop() if len(counting) == 1 else F32), (INPUT, AFFINE)
    elif action == FIRST:  # D15
        cause, to, roles = "first_input", OTHER, (INPUT,)
        to = next((dtype for (dtype, _, role), ok in zip(args, eligible, strict=True) if ok and role == INPUT), OTHER)
    else:
        return alone
    concerned = [ok and role in roles for (_, _, role), ok in zip(args, eligible, strict=True)]
    if cause != "in_place" and not any(concerned):
        return alone
    return cause, to, [ok and dtype != to for ok, (dtype, _, _) in zip(concerned, args, strict=True)]


arguments = st.lists(st.tuples(st.integers(OTHER, F64), st.booleans(), st.integers(INPUT, TARGET)), max_size=6)
usual = st.lists(st.tuples(st.sampled_from([OTHER, F16, BF16, F32]), st.booleans(), st.just(INPUT)), max_size=6)


@given(st.integers(LOWER, ERROR), st.sampled_from([F16, BF16]), st.booleans(), arguments | usual, st.booleans())
def test_decide_is_d10_to_d15(action, low, listed, args, explicit):
    to, cause, roles = _core.decide(action, low, listed, tuple(args), explicit)
    cast = [bool(roles >> role & 1) and dtype in (F16, BF16, F32) and dtype != to for dtype, _, role in args]
    assert (_core.CAUSES[cause], to, cast) == expected(action, low, listed, args, explicit)


def test_decide_refuses_numbers_that_are_no_enum():
    for bad in (
        (9, BF16, True, ()),
        (LOWER, 7, True, ()),
        (LOWER, BF16, True, ((F32, False, 4),)),
        (-1, BF16, True, ()),
    ):
        with pytest.raises(ValueError, match="is out of range"):
            _core.decide(*bad, False)


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
    with pytest.raises(TypeError, match=r"policy is made by|edit of a policy is a string"):
        make(hmp.Policy.load("hmp"))


# --- One parser for dtypes

NAMES = [torch.float16, "float16", "fp16", "torch.float16"]
# where a low dtype is taken -> the policy, or the dtype, that it makes
TAKES = {
    "from_ops": lambda low: Policy.from_ops(lower=["mm"], low_dtype=low).low_dtype,
    "from_files": lambda low: Policy.from_files(low_dtype=low).low_dtype,
    "with_low_dtype": lambda low: Policy.load("hmp").with_low_dtype(low).low_dtype,
    "convert": lambda low: hmp.convert(low_precision_type=low).low_dtype,
    "autocast": lambda low: of_region(low),  # noqa: PLW0108 - defined below
    "cast": lambda low: hmp.cast(torch.ones(1), low).dtype,
}


def of_region(low):
    with hmp.autocast("cpu", low, policy="torch-cpu"):
        return torch.mm(torch.ones(1, 1), torch.ones(1, 1)).dtype


@pytest.mark.parametrize("low", NAMES, ids=str)
@pytest.mark.parametrize("take", TAKES.values(), ids=TAKES)
def test_a_dtype_by_any_of_its_names(take, low):
    assert take(low) is FLOAT16


@pytest.mark.parametrize("low", ["fp8", "float", "half", "", torch.int8, 16, None], ids=repr)
@pytest.mark.parametrize("take", [TAKES["with_low_dtype"], TAKES["cast"]], ids=["policy", "cast"])
def test_what_is_no_dtype(take, low):
    with pytest.raises((ValueError, TypeError)):
        take(low)


def test_a_short_name_in_a_list_and_in_edits(tmp_path):
    path = tmp_path / "lower.txt"
    path.write_text("+softmax@fp16\n-mm@bf16\n")
    policy = Policy.from_files(path).with_edits("+gelu@bf16:fp32")
    assert actions(policy, "softmax") == ("fp32", "lower")
    assert actions(policy, "mm") == ("rest", "lower")
    assert actions(policy, "gelu") == ("fp32", "rest")
    assert "softmax@float16" in policy.lists["lower"]
    assert Policy.load(str(policy)) == policy
    assert Policy.from_ops(lower=["mm@bf16"]).lists["lower"] == ("mm@bfloat16",)
