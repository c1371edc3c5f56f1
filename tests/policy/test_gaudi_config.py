"""gaudi_config.json of optimum-habana as a policy."""

from __future__ import annotations

import json

import pytest

from habana_mp import hmp

HMP = {"use_habana_mixed_precision": True}
AUTOCAST = {"use_torch_autocast": True}


@pytest.fixture
def write(tmp_path):
    def write(content):
        path = tmp_path / "gaudi_config.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def actions(policy, *ops):
    return [policy.rule(op).action for op in ops]


# What such files say beside mixed precision.
OTHERS = {
    "use_fused_adam": True,
    "use_fused_clip_norm": True,
    "use_dynamic_shapes": False,
    "transformers_version": "4.28.1",
}


@pytest.mark.parametrize(
    ("config", "base"),
    [
        (HMP, "hmp"),
        ({**HMP, **OTHERS}, "hmp"),
        ({**HMP, "hmp_opt_level": "O1", "hmp_bf16_ops": None, "hmp_fp32_ops": None, "hmp_is_verbose": False}, "hmp"),
        ({**HMP, "hmp_opt_level": "O2"}, "hmp-o2"),
        ({**HMP, "hmp_opt_level": "o2"}, "hmp-o2"),
        ({**HMP, "autocast_bf16_ops": ["softmax"]}, "hmp"),
        (AUTOCAST, "hpu-autocast"),
        ({**AUTOCAST, "hmp_bf16_ops": ["softmax"], "use_habana_mixed_precision": False}, "hpu-autocast"),
    ],
    ids=["hmp", "other keys", "all given", "O2", "o2", "lists of autocast", "autocast", "lists of hmp"],
)
def test_the_policy_is_a_preset(write, config, base):
    assert hmp.Policy.load(write(config)) == hmp.Policy.load(base)


def test_mixed_precision_is_off(write):
    policy = hmp.Policy.load(write({"use_habana_mixed_precision": False, "hmp_bf16_ops": ["mm"]}))
    assert policy == hmp.Policy.from_ops()
    assert policy.name == "float32"


@pytest.mark.parametrize("config", [{}, OTHERS], ids=["empty", "others"])
def test_nothing_of_mixed_precision(write, config):
    with pytest.warns(
        UserWarning, match=r"gaudi_config\.json has no setting for mixed precision: all ops run in float32"
    ):
        assert hmp.Policy.load(write(config)).name == "float32"


@pytest.mark.parametrize(
    ("config", "base"),
    [
        ({"autocast_bf16_ops": ["softmax"], "autocast_fp32_ops": ["mm"]}, "hpu-autocast"),
        ({"autocast_bf16_ops": ["softmax"], "autocast_fp32_ops": ["mm"], "hmp_bf16_ops": ["exp"]}, "hpu-autocast"),
        ({"hmp_bf16_ops": ["softmax"], "hmp_fp32_ops": ["mm"], "autocast_bf16_ops": None}, "hmp"),
    ],
    ids=["autocast", "both", "hmp"],
)
def test_lists_without_a_switch(write, config, base):
    """The switch of later versions is an argument of the trainer."""
    policy = hmp.Policy.load(write(config))
    assert actions(policy, "softmax", "mm") == ["lower", "fp32"]
    assert policy.lists["promote"] == hmp.Policy.load(base).lists["promote"]


def test_as_editors_write_it(write):
    """As list files: blanks round a name, a byte-order mark (D20)."""
    policy = hmp.Policy.load(write("\ufeff" + json.dumps({**HMP, "hmp_bf16_ops": [" softmax "]})))
    assert policy.lists["lower"] == ("softmax",)


def test_a_folder(write):
    path = write({**HMP, "hmp_bf16_ops": ["softmax"]})
    assert hmp.Policy.load(path.parent) == hmp.Policy.load(str(path.parent)) == hmp.Policy.load(path)


@pytest.mark.parametrize(("switch", "front_end"), [(HMP, "hmp"), (AUTOCAST, "autocast")], ids=["hmp", "autocast"])
def test_lists(write, switch, front_end):
    lists = {f"{front_end}_bf16_ops": ["linear", "softmax", "iadd"], f"{front_end}_fp32_ops": ["embedding", "mm"]}
    path = write({**switch, **lists})
    for policy in (hmp.Policy.load(path), hmp.Policy.load(str(path)), hmp.convert(policy=str(path))):
        assert policy.lists["lower"] == ("iadd", "linear", "softmax")
        assert policy.lists["fp32"] == ("embedding", "mm")
        assert (
            str(policy.rule("softmax"))
            == f"softmax: lower (bfloat16), listed as softmax in {path}: {front_end}_bf16_ops"
        )


def test_one_list_takes_its_ops_out_of_the_other(write):
    policy = hmp.Policy.load(write({**HMP, "hmp_bf16_ops": ["softmax"]}))
    assert actions(policy, "softmax", "linear", "cross_entropy") == ["lower", "rest", "fp32"]


def test_the_command_line_takes_it(write, place_for_scripts):
    from click.testing import CliRunner

    from habana_mp.cli import main

    path = write({**HMP, "hmp_bf16_ops": ["softmax"]})
    done = CliRunner().invoke(main, ["explain", "softmax", "--policy", str(path)])
    assert f"lower (bfloat16), listed as softmax in {path}: hmp_bf16_ops" in done.stdout


def test_o2_has_its_own_lists(write):
    path = write({**HMP, "hmp_opt_level": "O2", "hmp_bf16_ops": ["softmax"], "hmp_fp32_ops": ["mm"]})
    with pytest.warns(
        UserWarning, match="hmp_opt_level O2 has its own lists and does not read hmp_bf16_ops and hmp_fp32_ops"
    ):
        assert hmp.Policy.load(path) == hmp.Policy.load("hmp-o2")


def test_an_unknown_op(write):
    path = write({**HMP, "hmp_fp32_ops": ["sofmax"]})
    with pytest.warns(
        UserWarning, match=f"{path}: hmp_fp32_ops: 'sofmax' is not an op of torch .*. Did you mean 'softmax'"
    ):
        hmp.Policy.load(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "Expecting value: line 1 column 1"),
        ('{"use_habana_mixed_precision": True}', "Expecting value: line 1 column 32"),
        ("[]", "a gaudi_config.json must be one object, {...}, not []"),
        ("[" * 100_000, "maximum recursion depth exceeded"),
        ({"use_habana_mixed_precision": "yes"}, "use_habana_mixed_precision must be true or false, not 'yes'"),
        ({"use_torch_autocast": 1}, "use_torch_autocast must be true or false, not 1"),
        ({**HMP, "hmp_is_verbose": None}, "hmp_is_verbose must be true or false, not None"),
        ({**HMP, "hmp_opt_level": "O3"}, "hmp_opt_level must be \"O1\" or \"O2\", not 'O3'"),
        ({**HMP, "hmp_opt_level": 1}, 'hmp_opt_level must be "O1" or "O2", not 1'),
        ({**HMP, "hmp_bf16_ops": "mm"}, "hmp_bf16_ops must be a list of op names, or null for the built-in list, not 'mm'"),
        ({**HMP, "hmp_fp32_ops": [1]}, "hmp_fp32_ops must be a list of op names, or null for the built-in list, not [1]"),
        ({**HMP, "hmp_fp32_ops": ["a b"]}, "hmp_fp32_ops: 'a b' is not an op name. Accepted are letters"),
        ({**HMP, "hmp_bf16_ops": ["mm"], "hmp_fp32_ops": ["mm"]}, "'mm' is in the lower list"),
        ({**HMP, "hmp_bf16_op": ["mm"]}, "'hmp_bf16_op' is not a key of mixed precision. Accepted are use_habana_mixed_precision, "),
        ({"use_habana_mixed_precison": True}, "Did you mean 'use_habana_mixed_precision'?"),
        ({**HMP, **AUTOCAST}, "use_habana_mixed_precision and use_torch_autocast are both true. Only one of them can be"),
    ],
    ids=[
        "empty", "Python's True", "a list", "a deep one", "a string", "a number", "null", "O3", "level 1", "one name", "numbers", "no name", "both lists",
        "unknown key", "mistyped switch", "both switches",
    ],
)  # fmt: skip
def test_mistakes(write, content, message):
    path = write(content)
    with pytest.raises(ValueError) as error:
        hmp.Policy.load(path)
    assert str(path) in str(error.value)
    assert message in str(error.value)


def test_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"gaudi_config\.json"):
        hmp.Policy.load(tmp_path / "gaudi_config.json")
