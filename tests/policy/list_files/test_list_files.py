"""List files as convert takes them: D1, D2, D4, D6, D9, D20 to D24. test_from_files.py has Policy.from_files."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest
import torch

from habana_mp import Policy, hmp
from habana_mp._convert.request import policy_for_convert
from habana_mp._policy.folder import presets

BF16, F16 = torch.bfloat16, torch.float16
HMP = Policy.load("hmp").lists


def for_convert(opt_level="O1", bf16="", fp32="", fp16="", low=BF16, policy=None, strict=False):
    return policy_for_convert(opt_level, bf16, fp32, fp16, low, policy, strict)


# --- D1, D2, D9: the arguments of convert


@pytest.mark.parametrize(("level", "preset"), [("O1", "hmp"), ("o1", "hmp"), ("O2", "hmp-o2"), ("o2", "hmp-o2")])
def test_d1_opt_level(level, preset):
    assert for_convert(level) == Policy.load(preset)
    assert for_convert(level).name == preset


@pytest.mark.parametrize("level", ["O0", "O3", "", "01", None, 1, b"O1"])
def test_d1_anything_else(level):
    with pytest.raises(ValueError, match=r'opt_level must be "O1" .* or "O2" .*, not '):
        for_convert(level)


@pytest.mark.parametrize(
    ("value", "error", "meant"),
    [
        pytest.param("balanced", ValueError, 'To pass a policy, use policy="balanced"', id="preset"),
        pytest.param(
            "cpu", ValueError, 'use policy="torch-cpu". convert takes no device: it converts the ops of', id="device"
        ),
        pytest.param("balancd", ValueError, "Did you mean policy='balanced'?", id="misspelt-preset"),
        pytest.param(torch.float16, ValueError, "use low_precision_type=torch.float16", id="dtype"),
        pytest.param("bf16", ValueError, 'use low_precision_type="bf16"', id="name-of-a-dtype"),
        pytest.param(Policy.from_ops(), ValueError, "To pass a policy, use policy=", id="policy"),
        pytest.param(
            torch.nn.Linear(2, 2),
            TypeError,
            "convert takes no model, and Linear is one. It converts the ops that all models call",
            id="model",
        ),
    ],
)
def test_another_argument_in_its_place(value, error, meant):
    with pytest.raises(error) as raised:
        for_convert(value)
    assert meant in str(raised.value)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("dtype", ". Did you mean 'low_precision_type'?"),
        ("low_dtype", ". Did you mean 'low_precision_type'?"),
        ("verbose", ". Did you mean 'isVerbose'?"),
        ("polcy", ". Did you mean 'policy'?"),
        ("enabled", ""),
    ],
)
def test_an_argument_that_convert_does_not_have(name, meant):
    accepted = (
        "opt_level, bf16_file_path, fp32_file_path, isVerbose, fp16_file_path, low_precision_type, policy, strict"
    )
    with pytest.raises(TypeError) as raised:
        hmp.convert(**{name: torch.float16})
    assert str(raised.value) == f"convert has no argument {name!r}: accepted are {accepted}{meant}"
    assert not hmp.is_converted()


@pytest.mark.parametrize("nothing", [None, ""])
def test_d2_none_and_empty_mean_the_default(nothing):
    assert for_convert(bf16=nothing, fp32=nothing, fp16=nothing) == Policy.load("hmp")
    assert Policy.from_files(nothing, nothing, nothing) == Policy.load("hmp")


@pytest.mark.parametrize(
    "kind", [str, Path, os.fsencode, lambda path: Path(os.path.relpath(path))], ids=["str", "Path", "bytes", "relative"]
)
def test_d2_paths(kind, written):
    assert for_convert(bf16=kind(written("mm\n"))).lists["lower"] == ("mm",)


def test_d2_the_file_may_be_deleted(written):
    path = written("mm\n")
    policy = for_convert(bf16=path)
    path.unlink()
    assert policy.rule("mm").file == str(path)
    assert policy.rule("mm").line == 1


@pytest.mark.parametrize("low", [torch.float32, torch.float64, torch.int8, "float32", 16, None])
def test_d9_low_precision_type(low):
    with pytest.raises(
        ValueError, match=r"low_precision_type must be torch\.bfloat16 or torch\.float16, or its name \(.*\), not "
    ):
        for_convert(low=low)


def test_d9_float16_keeps_the_lists():
    policy = for_convert(low=F16)
    assert policy.low_dtype == F16
    assert policy.lists == Policy.load("hmp").lists
    assert for_convert("O2", low=F16).low_dtype == F16


@pytest.mark.parametrize("argument", ["fp16", "bf16"])
def test_d9_float16_takes_either_list(argument, written):
    policy = for_convert(low=F16, **{argument: written("mm\n")})
    assert (policy.low_dtype, policy.lists["lower"]) == (F16, ("mm",))


def test_d9_both_lists(written):
    with pytest.raises(ValueError, match="fp16_file_path and bf16_file_path are both given"):
        for_convert(low=F16, bf16=written("mm\n"), fp16=written("mm\n"))


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_d9_fp16_list_with_bfloat16(level, written):
    with pytest.raises(ValueError, match=r"fp16_file_path=.*my\.txt' needs low_precision_type=torch\.float16"):
        for_convert(level, fp16=written("mm\n"))


def test_policy_takes_the_place_of_lists(written):
    assert for_convert(policy="hmp-resnet50") == Policy.load("hmp-resnet50")
    assert for_convert(policy="cuda").low_dtype == F16
    assert for_convert(policy="hmp-o1", low=F16).low_dtype == F16
    mine = Policy.from_ops(lower=["mm"])
    assert for_convert(policy=mine) is mine
    assert for_convert(policy=str(mine)) == mine
    with pytest.raises(ValueError, match=r"cannot be combined with fp32_file_path=.*my\.txt'"):
        for_convert(policy="hmp", fp32=written("mm\n"))
    with pytest.raises(ValueError, match="cannot be combined with opt_level O2"):
        for_convert("O2", policy="hmp")


# --- D4


@pytest.mark.parametrize("argument", ["bf16", "fp32"])
def test_d4_o2_does_not_read_lists(argument, tmp_path):
    with pytest.warns(
        UserWarning, match=rf"opt_level O2 .*does not read {argument}_file_path='.*nowhere.txt'"
    ) as warned:
        policy = for_convert("O2", **{argument: tmp_path / "nowhere.txt"})
    assert policy == Policy.load("hmp-o2")
    assert [Path(warning.filename).name for warning in warned] == ["test_list_files.py"]


# --- D6, D21: what the files do to the defaults
# id: lower file, fp32 file, (out of lower, into lower, out of fp32, into fp32); "all" = the whole default leaves

MERGED = {
    "D6 lower alone": ("mm\nrelu\n", None, ("all", {"mm", "relu"}, set(), set())),
    "D6 lower claims ops of the default": ("softmax\nmm\n", None, ("all", {"softmax", "mm"}, {"softmax"}, set())),
    "D6 fp32 alone claims": (None, "relu\nsoftmax\n", ({"relu"}, set(), "all", {"relu", "softmax"})),
    "D6 an overload claims its op": ("softmax.int\n", None, ("all", {"softmax.int"}, {"softmax"}, set())),
    "both given": ("mm\n", "relu\n", ("all", {"mm"}, "all", {"relu"})),
    "D20 an empty file is an empty list": ("", None, ("all", set(), set(), set())),
    "D21 add": ("+gelu\n", None, (set(), {"gelu"}, set(), set())),
    "D21 take out": ("-relu\n-t\n", None, ({"relu", "t"}, set(), set(), set())),
    "D6 an edit claims too": ("+softmax\n-relu\n", None, ({"relu"}, {"softmax"}, {"softmax"}, set())),
    "D6 what an edit takes out is not claimed": (None, "-softmax\n", (set(), set(), {"softmax"}, set())),
    "both edited": ("-relu\n", "+relu\n", ({"relu"}, set(), set(), {"relu"})),
    "one edited, one replaced": ("+softmax\n", "log\n", (set(), {"softmax"}, "all", {"log"})),
    "an edit of the default that the other list replaces": (
        "mm\nsoftmax\n",
        "-log\n",
        ("all", {"mm", "softmax"}, {"log", "softmax"}, set()),
    ),
    "D6 an entry for one low dtype claims for it": (
        "softmax@float16\n",
        None,
        ("all", {"softmax@float16"}, {"softmax"}, {"softmax@bfloat16"}),
    ),
    "D6 and an overload": (
        None,
        "+linear.out@float16\n",
        ({"linear"}, {"linear@bfloat16"}, set(), {"linear.out@float16"}),
    ),
    "D21 add for one low dtype": (
        "+softmax@float16\n",
        None,
        (set(), {"softmax@float16"}, {"softmax"}, {"softmax@bfloat16"}),
    ),
    "D21 take out for one low dtype": (None, "-softmax@float16\n", (set(), set(), {"softmax"}, {"softmax@bfloat16"})),
    "D21 take out for both": (None, "-softmax@float16\n-softmax@bfloat16\n", (set(), set(), {"softmax"}, set())),
    "added though there": ("+relu\n", None, (set(), set(), set(), set())),
    "taken out though not there": ("-gelu\n", None, (set(), set(), set(), set())),
}


@pytest.mark.parametrize("case", MERGED)
def test_merged(case, written):
    lower, fp32, (lower_out, lower_in, fp32_out, fp32_in) = MERGED[case]
    policy = for_convert(
        bf16=None if lower is None else written(lower, "low.txt"),
        fp32=None if fp32 is None else written(fp32, "fp32.txt"),
    )
    for name, out, into in (("lower", lower_out, lower_in), ("fp32", fp32_out, fp32_in)):
        kept = set() if out == "all" else set(HMP[name]) - out
        assert set(policy.lists[name]) == kept | into
    assert policy.lists["promote"] == HMP["promote"]
    assert policy.rest == "first_input"
    assert policy.name == "hmp+files"


def test_the_presets_given_as_files_are_the_preset():
    path = Path(Policy.load("hmp").rule("mm").file).parent
    hmp = Policy.load("hmp")
    assert for_convert(bf16=path / "lower.txt") == hmp
    # The preset promotes true_divide, an alias of div, which its fp32 list names: to a user's file that alias belongs (D39).
    for lists in ({"fp32": path / "fp32.txt"}, {"bf16": path / "lower.txt", "fp32": path / "fp32.txt"}):
        of_files = for_convert(**lists).lists
        assert {*hmp.lists["promote"]} - {*of_files["promote"]} == {"true_divide"}
        assert {**of_files, "promote": hmp.lists["promote"]} == hmp.lists
    resnet = path.parent / "hmp-resnet50"
    assert for_convert(bf16=resnet / "lower.txt", fp32=resnet / "fp32.txt") == Policy.load("hmp-resnet50")  # F39


def test_d6_a_claimed_op_changes_its_rule(written):
    assert for_convert().rule("softmax").action == "fp32"
    assert for_convert(bf16=written("+softmax\n")).rule("softmax").action == "lower"


ONE_LOW_DTYPE = {
    "added": ("+softmax@float16\n", None, "softmax", ("fp32", "lower"), ("softmax@bfloat16", "softmax@float16")),
    "taken out": (None, "-softmax@float16\n", "softmax", ("fp32", "rest"), ("softmax@bfloat16", None)),
    "both lists": ("mm\nrelu\n", "relu@float16\n", "relu", ("lower", "fp32"), ("relu", "relu@float16")),
    "D17 an overload": (
        "pow.Tensor_Scalar\n",
        "pow@float16\n",
        "pow",
        ("lower", "fp32"),
        ("pow.Tensor_Scalar", "pow@float16"),
    ),
}


@pytest.mark.parametrize("case", ONE_LOW_DTYPE)
def test_entries_for_one_low_dtype(case, written):
    lower, fp32, op, actions, listed_as = ONE_LOW_DTYPE[case]
    files = {
        "bf16": None if lower is None else written(lower, "low.txt"),
        "fp32": None if fp32 is None else written(fp32, "fp32.txt"),
    }
    rules = [for_convert(low=low, **files).rule(op) for low in (BF16, F16)]
    assert tuple(rule.action for rule in rules) == actions
    assert tuple(rule.listed_as for rule in rules) == listed_as
    assert for_convert(**files).with_low_dtype(F16) == for_convert(low=F16, **files)


def test_an_entry_for_one_low_dtype_keeps_its_place(written):
    path = written("mm\n\nlayer_norm@float16  # too narrow\n")
    rule = for_convert(low=F16, fp32=path).rule("layer_norm")
    assert (rule.listed_as, rule.file, rule.line) == ("layer_norm@float16", str(path), 3)
    assert str(rule) == f"layer_norm: fp32, listed as layer_norm@float16 in {path}:3"


# --- D20, D21, D24: files that cannot be taken


REFUSED = {
    "two names": ("mm\nrelu gelu\n", r"my.txt:2: 'relu gelu' is not an op name"),
    "a C++ name": ("aten::mm\n", r"my.txt:1: 'aten::mm' is not an op name.*\(write 'mm'\)"),
    "bytes": (b"mm\n\xff\xfe\x00\n", r"my.txt:2: '\\xff\\xfe\\x00' is not an op name"),
    "UTF-16": ("mm\n".encode("utf-16"), r"my.txt:1: "),
    "a dtype that is not low": (
        "mm\nmm@float64\n",
        r"my.txt:2: 'mm@float64' is not an entry of a list. After @, float16 or bfloat16 is accepted",
    ),
    "no dtype": ("mm@\n", r"my.txt:1: 'mm@' is not an entry of a list. After @, float16 or bfloat16"),
    "added and taken out": ("+mm\n-mm@float16\n", r"my.txt:2: 'mm@float16' is taken out here and added in line 1"),
    "D21 mixed": ("mm\n\n-relu\n", r"my.txt:3: 'relu' begins with \+ or -, but the names above do not"),
    "a long line": ("mm\n" + "x" * 257 + "\n", r"my.txt:2: the line has more than 256 characters"),
    "a large file": (b"\n" * (2**20 + 1), r"my.txt: the file is larger than 1 MiB"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("argument", ["bf16", "fp32"])
def test_d20_d21_refused(case, argument, written):
    content, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        for_convert(**{argument: written(content)})


def test_d20_the_forms_of_real_files(written):
    content = b"\xef\xbb\xbf# head\r\n mm \r\n\r\n\tpow.Tensor_Scalar\t# why\r\nrelu"
    assert for_convert(bf16=written(content)).lists["lower"] == ("mm", "pow.Tensor_Scalar", "relu")


def test_d24_no_such_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"bf16_file_path takes the path of a list file\): .*nowhere\.txt"):
        for_convert(bf16=tmp_path / "nowhere.txt")


def test_d24_a_folder(tmp_path):
    with pytest.raises(IsADirectoryError, match=rf"fp32_file_path .*, and policy takes a folder\): '{tmp_path}'"):
        for_convert(fp32=tmp_path)


def test_d24_no_permission(written):
    path = written("mm\n")
    path.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # root may read everything, so somebody else tries
    try:
        with pytest.raises(PermissionError, match=r"my\.txt"):
            for_convert(bf16=path)
    finally:
        os.seteuid(user)


def test_a_path_that_is_no_text_is_reported_in_text(tmp_path):
    path = os.fsencode(tmp_path) + b"/\xff.txt"
    Path(os.fsdecode(path)).write_text("m m\n")
    with pytest.raises(ValueError, match=r"udcff.txt:1: 'm m' is not an op name"):
        for_convert(bf16=path)


@pytest.mark.parametrize("name", ["bf16", "fp32"])
def test_what_is_no_path_is_reported_by_name(name):
    with pytest.raises(TypeError, match=f"{name}_file_path must be the path of a list file, not 3"):
        for_convert(**{name: 3})


def test_what_is_no_policy_is_reported():
    with pytest.raises(TypeError, match="policy must be a Policy, the name of a preset or the path of a folder, not 3"):
        for_convert(policy=3)


# --- D22: names that torch does not have


def test_d22_one_warning_for_a_list(written):
    path = written("mm\nlienar\n# comment\nsofmax # typo\nqqqqqqqq\n")
    with pytest.warns(UserWarning, match="names without effect") as warned:
        policy = for_convert(bf16=path)
    assert len(warned) == 1
    assert Path(warned[0].filename).name == "test_list_files.py"
    torch_has = f"is not an op of torch {torch.__version__}"
    lines = str(warned[0].message).splitlines()
    assert lines[0] == f"names without effect in {path}:"
    assert lines[1].startswith(f"{path}:2: 'lienar' {torch_has}. Did you mean 'linear'")
    assert lines[2].startswith(f"{path}:4: 'sofmax' {torch_has}. Did you mean 'softmax'")
    assert lines[3] == f"{path}:5: 'qqqqqqqq' {torch_has}"
    assert len(lines) == 4
    assert policy.rule("mm").action == "lower"


def test_d22_a_warning_for_each_list(written):
    with pytest.warns(UserWarning, match="names without effect") as warned:
        for_convert(bf16=written("lienar\n", "low.txt"), fp32=written("-sofmax\n", "fp32.txt"))
    first_lines = [str(warning.message).splitlines()[0] for warning in warned]
    assert [line.rpartition("/")[2] for line in first_lines] == ["low.txt:", "fp32.txt:"]


def test_d22_looks_up_the_name_alone(written):
    path = written("mm@float16\npow.Tensor_Scalar@bfloat16\nlienar@float16\n")
    with pytest.warns(UserWarning, match="names without effect") as warned:
        for_convert(bf16=path)
    lines = str(warned[0].message).splitlines()
    assert lines[1].startswith(f"{path}:3: 'lienar' is not an op of torch {torch.__version__}. Did you mean 'linear'")
    assert len(lines) == 2


def test_d22_strict(written):
    path = written("mm\nlienar\nsofmax\n")
    with pytest.raises(ValueError, match=rf"{path}:2: 'lienar' .*\n{path}:3: 'sofmax' "):
        for_convert(bf16=path, strict=True)
    with pytest.raises(ValueError, match="'lienar'"):
        Policy.from_files(lower=path, strict=True)


@pytest.mark.filterwarnings("ignore:names without effect")
@pytest.mark.parametrize("made", ["folder", "text", "edits", "from_ops"])
def test_d22_strict_policies(made, tmp_path):
    """They passed: convert looked at list files alone."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, text in {
        "policy.toml": 'low_dtype = "bfloat16"\nrest = "inputs"',
        "lower.txt": "mm\nlienar\n",
        "fp32.txt": "",
        "promote.txt": "",
    }.items():
        (folder / name).write_text(text)
    policy, place = {
        "folder": (folder, rf"^{folder}/lower.txt:2: "),
        "text": (str(Policy.load(folder)), "^"),
        "edits": (Policy.load("balanced").with_edits("+lienar:lower"), "^"),
        "from_ops": (Policy.from_ops(lower=["mm", "lienar"]), "^"),
    }[made]
    for_convert(policy=policy)
    with pytest.raises(ValueError, match=f"{place}'lienar' is not an op of torch"):
        for_convert(policy=policy, strict=True)
    if not isinstance(policy, Policy):
        with pytest.raises(ValueError, match=f"{place}'lienar' is not an op of torch"):
            Policy.load(policy, strict=True)
    with pytest.raises(ValueError, match="'lienar' is not an op of torch"):
        Policy.from_files(base=policy, strict=True)
    # Not of a list that is replaced.
    (tmp_path / "other.txt").write_text("mm\n")
    assert Policy.from_files(tmp_path / "other.txt", base=policy, strict=True)


@pytest.mark.parametrize("preset", presets())
def test_d22_presets_are_strict(preset):
    policy = Policy.load(preset)
    assert for_convert(policy=policy, strict=True) is policy


@pytest.mark.parametrize(
    "name",
    ["iadd", "truediv", "rsub", "__matmul__", "relu_", "GRUCell", "multi_dot", "linalg_solve", "fft_fft", "nll_loss2d",
     "_thnn_fused_gru_cell", "pow.Tensor_Scalar", "conv_transpose2d.input", "_convolution.deprecated"],
)  # fmt: skip
def test_d22_names_that_torch_has(name, written):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for_convert(bf16=written(name + "\n"), fp32=written("", "empty.txt"), strict=True)


# --- D23: in both lists


@pytest.mark.parametrize(
    ("lower", "fp32", "places"),
    [
        ("mm\nrelu\n", "# head\n\nrelu\n", ("low.txt:2", "fp32.txt:3")),
        ("+softmax\n", "log\nsoftmax\n", ("low.txt:1", "fp32.txt:2")),
        ("+gelu\n", "+gelu\n", ("low.txt:1", "fp32.txt:1")),
        ("pow.Tensor_Scalar\n", "pow\n", ("low.txt:1", "fp32.txt:1")),  # D17: the whole op in convert
        ("pow.Tensor_Scalar\n", "pow.Tensor_Tensor\n", ("low.txt:1", "fp32.txt:1")),
        ("mm\nrelu@float16\n", "relu@float16\n", ("low.txt:2", "fp32.txt:1")),
        ("pow.Tensor_Scalar@float16\n", "pow@float16\n", ("low.txt:1", "fp32.txt:1")),
    ],
    ids=[
        "both files",
        "an edit and a file",
        "two edits",
        "an op and its overload",
        "two overloads",
        "one low dtype",
        "one low dtype, an op and its overload",
    ],
)
def test_d23_both_places(lower, fp32, places, written):
    low, high = written(lower, "low.txt"), written(fp32, "fp32.txt")
    first, second = (f"{path.parent}/{place}" for path, place in zip((low, high), places, strict=True))
    with pytest.raises(ValueError, match=rf"in the lower list \({first}\) .*in the fp32 list \({second}\)"):
        for_convert(bf16=low, fp32=high)


@pytest.mark.parametrize(
    ("lower", "fp32"),
    [("relu\n", "relu@float16\n"), ("relu@float16\n", "relu@bfloat16\n"), ("+relu@float16\n", "relu\n")],
)
@pytest.mark.parametrize("low", [BF16, F16])
def test_d23_not_for_another_condition(lower, fp32, low, written):
    for_convert(bf16=written(lower, "low.txt"), fp32=written(fp32, "fp32.txt"), low=low)


def test_d23_twice_in_one_list(written):
    policy = for_convert(bf16=written("mm\nrelu\nmm\n"))
    assert policy.lists["lower"] == ("mm", "relu")
    assert policy.rule("mm").line == 1
