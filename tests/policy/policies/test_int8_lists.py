"""The lists weight_int8 and int8 (D56): read, refused, written, edited, and absent where nobody uses them."""

import pickle

import pytest

from habana_mp import hmp


def folder(path, **lists):
    path.mkdir()
    (path / "policy.toml").write_text('low_dtype = "bfloat16"\nrest = "inputs"\n')
    for title in ("lower", "fp32", "promote"):
        (path / f"{title}.txt").write_text(lists.pop(title, ""))
    for title, text in lists.items():
        (path / f"{title}.txt").write_text(text)
    return path


def test_folder(tmp_path):
    policy = hmp.Policy.load(
        folder(tmp_path / "mine", lower="mm\n", weight_int8="embedding\n", int8="linear in **.mlp\n")
    )
    assert policy.rule("embedding").action == "weight_int8"
    assert policy.limited["int8"] == ("linear in **.mlp",)
    assert policy.rule("linear").action == "rest"


@pytest.mark.parametrize("title", ["weight_int8", "int8"])
def test_what_has_no_weight_is_refused(title, tmp_path):
    path = folder(tmp_path / "mine", **{title: "linear\nsoftmax  # no\n"})
    expected = rf"{title}.txt:2: 'softmax' cannot be in the {title} list. Accepted are linear, addmm, mm, matmul, bmm"
    with pytest.raises(ValueError, match=expected):
        hmp.Policy.load(path)
    with pytest.raises(ValueError, match=f"'softmax' cannot be in the {title} list"):
        hmp.Policy.load("balanced").with_edits(f"+softmax:{title}")


@pytest.mark.parametrize("op", ["embedding", "embedding_bag"])
def test_embeddings_have_no_activations(op):
    assert hmp.Policy.from_ops(weight_int8=[op]).rule(op).action == "weight_int8"
    with pytest.raises(ValueError, match=f"'{op}' cannot be in the int8 list"):
        hmp.Policy.from_ops(int8=[op])


@pytest.mark.parametrize("other", ["lower", "fp32", "weight_int8"])
def test_an_op_is_in_one_of_them(other):
    with pytest.raises(
        ValueError,
        match=f"'mm' is in the {other} list and in the int8 list|'mm' is in the int8 list and in the {other} list",
    ):
        hmp.Policy.from_ops(int8=["mm"], **{other: ["mm"]})


def test_beside_promote_it_decides():
    assert hmp.Policy.from_ops(promote=["mm"], int8=["mm"]).rule("mm").action == "int8"


def test_edits():
    policy = hmp.Policy.load("balanced").with_edits(
        "+linear:int8", "+mm in **.mlp:weight_int8", "+bmm in **.experts:int8"
    )
    assert policy.rule("linear").action == "int8"
    assert policy.limited["int8"] == ("bmm in **.experts",)
    assert "linear" not in policy.lists["lower"]
    assert policy.with_edits("+linear:lower").lists["int8"] == ()
    assert policy.with_edits("-linear").rule("linear").action == "rest"


def test_text_and_pickle():
    policy = hmp.Policy.load("balanced").with_edits("+linear:int8", "+conv2d@float16:weight_int8", "+mm in **.mlp:int8")
    for same in (hmp.Policy.load(str(policy)), pickle.loads(pickle.dumps(policy))):
        assert same == policy
        assert str(same) == str(policy)


def test_texts_without_them_are_as_before():
    text = "name=small low_dtype=bfloat16 rest=inputs lower=mm fp32= promote= error="
    assert str(hmp.Policy.load(text)) == text


def test_files(tmp_path):
    file = tmp_path / "int8.txt"
    file.write_text("linear\n")
    policy = hmp.Policy.from_files(int8=file, base="balanced")
    assert policy.rule("linear").action == "int8"
    assert policy.rule("linear").file == str(file)


def test_written_folder(tmp_path):
    from habana_mp._policy.folder import write_folder

    for policy in (hmp.Policy.load("balanced"), hmp.Policy.load("balanced").with_edits("+linear:int8")):
        path = tmp_path / policy.name
        path.mkdir()
        write_folder(path, policy._core, "a test")
        assert hmp.Policy.load(path) == policy
        assert (path / "int8.txt").exists() is bool(policy.lists["int8"])
