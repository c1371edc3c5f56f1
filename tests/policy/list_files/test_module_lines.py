"""Names that are limited to modules, in list files, edits and texts of policies: the form, what meets what, and what is kept."""

from __future__ import annotations

import copy
import pickle

import pytest

from habana_mp import hmp
from habana_mp._autocast.module_lines import ModuleLines


def folder(tmp_path, **lists):
    (tmp_path / "policy.toml").write_text('low_dtype = "bfloat16"\nrest = "inputs"\n')
    for title in ("lower", "fp32", "promote"):
        (tmp_path / f"{title}.txt").write_text("\n".join(lists.get(title, ())) + "\n")
    return tmp_path


NONE = dict.fromkeys(("lower", "fp32", "promote", "weight_int8", "int8"), ())
LINES = {
    "one module": ("mul in model.rotary_emb", "mul in model.rotary_emb"),
    "a pattern": ("mul in *.rotary_emb", "mul in *.rotary_emb"),
    "any depth": ("mul in **.rotary_emb", "mul in **.rotary_emb"),
    "a number": ("layer_norm in encoder.layers.0", "layer_norm in encoder.layers.0"),
    "a low dtype": ("exp@fp16 in loss", "exp@float16 in loss"),
    "an overload": ("pow.Tensor_Scalar in norm", "pow.Tensor_Scalar in norm"),
    "blanks and a comment": ("  mul \t in   head  # why", "mul in head"),
}


@pytest.mark.parametrize(("line", "read"), LINES.values(), ids=LINES)
def test_a_line_of_a_file(tmp_path, line, read):
    policy = hmp.Policy.load(folder(tmp_path, fp32=["softmax", line]))
    assert policy.limited == {**NONE, "fp32": (read,)}
    assert policy.lists["fp32"] == ("softmax",)
    assert policy.rule("mul").action == "rest"  # of the model as a whole nothing is said


REFUSED = {
    "no pattern": ("mul in", "'mul in' is not an op name"),
    "two words": ("mul in a b", "'a b' is not a pattern of modules"),
    "a dot first": ("mul in .a", "'.a' is not a pattern of modules"),
    "two dots": ("mul in a..b", "'a..b' is not a pattern of modules"),
    "a bracket": ("mul in layers[0]", "'layers[0]' is not a pattern of modules"),
    "another word": ("mul on a", "'mul on a' is not an op name"),
    "a wrong dtype": ("mul@float64 in a", "After @, float16 or bfloat16 is accepted"),
    "no op": ("m-l in a", "is not an op name"),
}


@pytest.mark.parametrize(("line", "message"), REFUSED.values(), ids=REFUSED)
def test_a_line_that_is_refused_is_named(tmp_path, line, message):
    folder(tmp_path, fp32=["softmax", line])
    with pytest.raises(ValueError, match=r"fp32\.txt:2: ") as raised:
        hmp.Policy.load(tmp_path)
    assert message in str(raised.value)


def test_an_unknown_op_is_warned_of(tmp_path):
    with pytest.warns(UserWarning, match="fp32.txt:1: 'layernorm' is not an op of torch"):
        hmp.Policy.load(folder(tmp_path, fp32=["layernorm in head"]))


def test_one_name_in_two_lists_for_the_same_modules(tmp_path):
    folder(tmp_path, lower=["mul in head"], fp32=["softmax", "mul in head"])
    with pytest.raises(
        ValueError, match=r"'mul in head' is in the lower list \(.*lower.txt:1\) and in the fp32 list \(.*fp32.txt:2\)"
    ):
        hmp.Policy.load(tmp_path)


def test_the_same_name_for_other_modules_is_another_one(tmp_path):
    policy = hmp.Policy.load(folder(tmp_path, lower=["mul in head", "mul"], fp32=["mul in body"]))
    assert policy.lists["lower"] == ("mul",)
    assert policy.limited == {**NONE, "lower": ("mul in head",), "fp32": ("mul in body",)}


BASE = hmp.Policy.from_ops(lower=["mul", "mm in a"], fp32=["mul in a", "exp in b"])

EDITS = {
    "added": (
        ("+add in c:promote",),
        {"lower": ("mm in a",), "fp32": ("mul in a", "exp in b"), "promote": ("add in c",)},
    ),
    "moved": (("+mul in a:lower",), {"lower": ("mm in a", "mul in a"), "fp32": ("exp in b",), "promote": ()}),
    "taken out": (("-mul in a",), {"lower": ("mm in a",), "fp32": ("exp in b",), "promote": ()}),
    "of the whole model": (
        ("-mul", "+exp:lower"),
        {"lower": ("mm in a",), "fp32": ("mul in a", "exp in b"), "promote": ()},
    ),
}


@pytest.mark.parametrize(("edits", "limited"), EDITS.values(), ids=EDITS)
def test_edits(edits, limited):
    assert BASE.with_edits(*edits).limited == {**NONE, **limited}


@pytest.mark.parametrize(
    ("before", "edit", "after"),
    [
        ("linear in head", "-linear@float16 in head", ("linear@bfloat16 in head",)),
        ("linear@float16 in head", "-linear in head", ()),
        ("linear@float16 in head", "+linear in head:lower", ("linear in head",)),
        ("multiply in head", "+mul in head:lower", ("mul in head",)),
        ("mul in head", "-mul in body", ("mul in head",)),
    ],
)
def test_edits_of_some_modules_follow_the_rules_of_others(before, edit, after):
    """Other names of an op and low dtypes, as without modules (D6, D39)."""
    policy = hmp.Policy.from_ops(lower=[before]).with_edits(edit)
    assert policy.limited["lower"] == after


def test_an_edit_puts_no_limited_name_into_the_error_list():
    with pytest.raises(ValueError, match="the error list is for the whole model"):
        BASE.with_edits("+mul in a:error")


@pytest.mark.parametrize(
    ("text", "limited"),
    [
        ("+mul in c\n", {"lower": ("mm in a",), "fp32": ("mul in a", "exp in b", "mul in c"), "promote": ()}),
        ("-mul in a\n+mm in a\n", {"lower": (), "fp32": ("mm in a", "exp in b"), "promote": ()}),
        ("-multiply in a\n", {"lower": ("mm in a",), "fp32": ("exp in b",), "promote": ()}),
        ("-mul in a\n", {"lower": ("mm in a",), "fp32": ("exp in b",), "promote": ()}),
        ("softmax\nmul in d\n", {"lower": ("mm in a",), "fp32": ("mul in d",), "promote": ()}),
    ],
    ids=["edits add", "edits move", "by another name (D39)", "edits take out", "a list replaces"],
)
def test_files_over_a_policy(tmp_path, text, limited):
    (tmp_path / "fp32.txt").write_text(text)
    assert hmp.Policy.from_files(fp32=tmp_path / "fp32.txt", base=BASE).limited == {**NONE, **limited}


def test_a_policy_keeps_them(tmp_path):
    from habana_mp._policy.folder import write_folder

    for other in (hmp.Policy.load(str(BASE)), pickle.loads(pickle.dumps(BASE)), copy.deepcopy(BASE)):
        assert (other, hash(other), other.limited) == (BASE, hash(BASE), BASE.limited)
    write_folder(tmp_path, BASE._core, "a test")
    assert hmp.Policy.load(tmp_path).limited == BASE.limited
    assert BASE.with_low_dtype("float16").limited == BASE.limited
    assert hmp.Policy.from_ops(lower=["mul"]) != BASE
    assert str(BASE).endswith(" limited=fp32:mul:a,lower:mm:a,fp32:exp:b") or " limited=" in str(BASE)


@pytest.mark.parametrize(
    "text", ["limited=", "limited=mul:a", "limited=error:mul:a", "limited=fp32:mul", "limited=fp32:m l:a"]
)
def test_texts_that_are_none(text):
    plain = str(hmp.Policy.from_ops(lower=["mul"]))
    if text == "limited=":
        assert hmp.Policy.load(f"{plain} {text}") == hmp.Policy.load(plain)
        return
    with pytest.raises(ValueError, match="not the text of a policy"):
        hmp.Policy.load(f"{plain} {text}")


def test_a_checkpoint_warns_of_other_lines():
    with pytest.warns(UserWarning, match="mul in a: fp32 -> no line"):
        hmp.PolicyState(BASE.with_edits("-mul in a")).load_state_dict(hmp.PolicyState(BASE).state_dict())


# --- Which of them hold in a module

WINS = {
    "the module itself": (["mul in a"], [], "a", "fp32"),
    "what is inside of it": (["mul in a"], [], "a.b.c", "fp32"),
    "another module": (["mul in a"], [], "ab", "lower"),
    "the model": (["mul in a"], [], "", "lower"),
    "a star is one name": (["mul in *.b"], [], "a.b", "fp32"),
    "a star is no more than one": (["mul in *.b"], [], "a.c.b", "lower"),
    "two stars are any": (["mul in **.b"], [], "a.c.b", "fp32"),
    "the deeper module wins": (["mul in a"], ["mul in a.b"], "a.b.c", "lower"),
    "in whatever list": (["mul in a.b"], ["mul in a"], "a.b.c", "fp32"),
    "a path wins over a pattern": (["mul in a.b"], ["mul in a.*"], "a.b", "fp32"),
    "the longer pattern wins": (["mul in a.b*"], ["mul in a.*"], "a.bc", "fp32"),
    "another name of the op": (["multiply in a"], [], "a", "fp32"),
    "a module that is named as wrappers are": (["mul in module"], [], "module", "fp32"),
    "wrappers have no names": (["mul in a.b"], [], "module._orig_mod.a.b", "fp32"),
}


@pytest.mark.parametrize(("fp32", "lower", "path", "action"), WINS.values(), ids=WINS)
def test_what_holds_in_a_module(fp32, lower, path, action):
    policy = hmp.Policy.from_ops(lower=["mul", *lower], fp32=fp32)
    lines = ModuleLines(policy)
    assert lines.policy_of(lines.of(path)).rule("mul").action == action
    assert lines.policy_of(lines.of(path)).limited == NONE
