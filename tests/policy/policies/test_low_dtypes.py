"""Policies by their low dtype: entries for one, which are accepted, what is in force, the names of a dtype, and folders that are refused."""

from __future__ import annotations

import contextlib
import pickle
import re
from pathlib import Path

import pytest
import torch

from habana_mp import Policy, hmp
from habana_mp.results import PolicyDiff

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
    with pytest.raises(
        ValueError, match=f"^'{re.escape(edit)}' is not an edit of a policy: .* op@float16 or op@bfloat16"
    ):
        EDITED.with_edits(edit)


ACCEPTED = "Accepted are '+op:list' and '-op', with a list of lower, fp32, promote, weight_int8, int8, error, and op@float16 or op@bfloat16"


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        pytest.param("softmax:fp32", "it begins with neither + nor -.", id="no-sign"),
        pytest.param("+softmax", "it names no list. Write '+softmax:fp32' or '+softmax:lower'.", id="no-list"),
        pytest.param("+softmax:bf16", "'bf16' is not a list. Did you mean 'lower'?", id="a-dtype-as-list"),
        pytest.param("+softmax:FP32", "'FP32' is not a list. Did you mean 'fp32'?", id="capitals"),
        pytest.param("+softmax:lowr", "'lowr' is not a list. Did you mean 'lower'?", id="misspelt-list"),
        pytest.param("+softmax:zzz", "'zzz' is not a list.", id="no-such-list"),
        pytest.param(
            "-mul:fp32", "- removes the op from all lists and takes no list. Write '-mul'.", id="list-after-minus"
        ),
        pytest.param(
            "+mul in Net: layers.1.mlp:fp32",
            "a path has no name of a model before it. Write '+mul in layers.1.mlp:fp32'.",
            id="model-before-the-path",
        ),
        pytest.param("-mul in Net: head", "a path has no name of a model before it. Write '-mul in head'.", id="minus"),
        pytest.param("+mul in a.[0]:fp32", "'a.[0]' is not a path or a pattern of modules.", id="no-pattern"),
        pytest.param("+mm@half:fp32", "'half' is not a low dtype.", id="no-low-dtype"),
        pytest.param("+m m:fp32", "'m m' is not the name of an op.", id="no-op"),
    ],
)
def test_an_edit_that_is_none_is_reported_with_its_wrong_part(edit, problem):
    with pytest.raises(ValueError) as raised:
        EDITED.with_edits(edit)
    assert str(raised.value).startswith(f"{edit!r} is not an edit of a policy: {problem} {ACCEPTED}")


def test_with_edits_looks_up_the_name_d22():
    with pytest.raises(ValueError, match=r"^'lienar' is not an op of torch .*Did you mean 'linear'"):
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


@pytest.mark.parametrize("how", MADE)
def test_compiled_is_kept(how, tmp_path):
    """How code of torch.compile rounds (D55)."""
    policy = Policy.load(preset_folder(tmp_path, GOOD + 'compiled = "fused"\n'))
    assert (policy.compiled, MADE[how](policy, tmp_path / "lower.txt").compiled) == ("fused", "fused")


def test_compiled_counts():
    exact, fused = (Policy.from_ops(["mm"], compiled=compiled) for compiled in ("exact", "fused"))
    assert (exact, exact.compiled) == (Policy.from_ops(["mm"]), "exact")
    assert exact != fused
    assert str(fused) == "name=custom low_dtype=bfloat16 rest=inputs compiled=fused lower=mm fp32= promote= error="
    assert PolicyDiff.between(exact, fused).settings == {"compiled": ("exact", "fused")}


@pytest.mark.parametrize(("compiled", "error"), [("fast", ValueError), (True, TypeError)])
def test_another_compiled_is_refused(compiled, error):
    with pytest.raises(error, match=r"exact or fused is accepted|compiled must be a string"):
        Policy.from_ops(["mm"], compiled=compiled)


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


# --- folders that are refused


def preset_folder(folder: Path, description: str, lower: str = "mm\n") -> Path:
    (folder / "policy.toml").write_text(description)
    for name, text in (("lower", lower), ("fp32", ""), ("promote", "")):
        (folder / f"{name}.txt").write_text(text)
    return folder


GOOD = 'low_dtype = "bfloat16"\nrest = "inputs"\n'
BAD_FOLDERS = {
    "no rest": ('low_dtype = "bfloat16"\n', "mm\n", "policy.toml: rest must be given"),
    "rest is no string": ('low_dtype = "bfloat16"\nrest = 3\n', "mm\n", "policy.toml: rest must be a string"),
    "unknown rest": ('low_dtype = "bfloat16"\nrest = "low"\n', "mm\n", "first_input, fp32 or inputs"),
    "unknown dtype": ('low_dtype = "int8"\nrest = "inputs"\n', "mm\n", "bfloat16 or float16"),
    "another rest": ('low_dtype = "bfloat16"\nrest = "none"\n', "mm\n", "policy.toml: .*none"),
    "unknown key": (GOOD + "rset = 1\n", "mm\n", "policy.toml: 'rset' is not a key"),
    "no TOML": ("low_dtype = \n", "mm\n", r"policy.toml: .*line 1"),
    "error is no list": (GOOD + 'error = "mm"\n', "mm\n", "error must be a list of op names"),
    "low_dtypes is no list": (
        GOOD + 'low_dtypes = "bfloat16"\n',
        "mm\n",
        "policy.toml: low_dtypes must be a list of bfloat16",
    ),
    "no low_dtypes": (
        GOOD + "low_dtypes = []\n",
        "mm\n",
        "policy.toml: low_dtypes must be a list of bfloat16 and float16",
    ),
    "low_dtypes is a number": (GOOD + "low_dtypes = 3\n", "mm\n", "policy.toml: low_dtypes must be a list of bfloat16"),
    "other low_dtypes": (
        GOOD + "low_dtypes = [[1], 2]\n",
        "mm\n",
        "policy.toml: low_dtypes must be a list of bfloat16",
    ),
    "low_dtype is none of them": (
        GOOD + 'low_dtypes = ["float16"]\n',
        "mm\n",
        "policy.toml: low_dtype must be float16, not 'bfloat16'",
    ),
    "cache is no bool": (GOOD + "cache = 0\n", "mm\n", "policy.toml: cache must be true or false"),
    "a dtype that is not low": (GOOD, "relu\nmm@float32\n", "lower.txt:2: 'mm@float32' is not an entry of a list"),
    "an error for such a dtype": (GOOD + 'error = ["mm@"]\n', "mm\n", "policy.toml: 'mm@' is not an entry of a list"),
    "edits": (GOOD, "+mm\n", r"lower.txt: names that begin with \+ or -"),
    "a bad line": (GOOD, "m m\n", "lower.txt:1: 'm m' is not an op name"),
    "a bad name": (GOOD + 'name = "a b"\n', "mm\n", "'a b' is not a policy name"),
}


@pytest.mark.parametrize("case", BAD_FOLDERS)
def test_load_refuses_a_folder(case, tmp_path):
    description, lower, message = BAD_FOLDERS[case]
    with pytest.raises(ValueError, match=message):
        Policy.load(preset_folder(tmp_path, description, lower))


def test_load_a_folder_with_a_name_that_torch_lacks_d22(tmp_path):
    with pytest.warns(UserWarning, match=r"lower.txt:1: 'lienar' is not an op of torch .*Did you mean 'linear'"):
        Policy.load(preset_folder(tmp_path, GOOD, "lienar\n"))


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
