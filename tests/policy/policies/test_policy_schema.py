"""policy.schema.json accepts the descriptions that the reader accepts, and no others."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from habana_mp import hmp
from habana_mp._policy import folder as reader
from habana_mp.cli import main

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

SCHEMA = json.loads(reader.SCHEMA.read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)
GOOD = 'low_dtype = "bfloat16"\nrest = "inputs"\n'


def load(folder: Path, description: str) -> hmp.Policy:
    (folder / "policy.toml").write_text(description)
    for title in reader.LISTS:
        (folder / f"{title}.txt").touch()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that torch does not have: they depend on its version
        return hmp.Policy.load(folder)


def test_the_schema_is_one():
    jsonschema.Draft7Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("preset", hmp.presets())
def test_presets_are_valid(preset):
    text = (reader.SHIPPED / preset / "policy.toml").read_text(encoding="utf-8")
    VALIDATOR.validate(tomllib.loads(text))


def test_what_edit_writes_is_valid(tmp_path):
    done = CliRunner().invoke(main, ["lists", "edit", "hmp", "+softmax:lower", "--output", str(tmp_path / "mine")])
    assert done.exit_code == 0
    VALIDATOR.validate(tomllib.loads((tmp_path / "mine" / "policy.toml").read_text()))


def test_the_command_prints_it():
    done = CliRunner().invoke(main, ["lists", "schema"])
    assert (done.exit_code, json.loads(done.stdout)) == (0, SCHEMA)


def test_every_key_is_described_and_known_to_the_reader():
    assert set(SCHEMA["properties"]) == reader._KEYS
    assert all(len(each["description"]) > 20 for each in SCHEMA["properties"].values())


@pytest.mark.parametrize(
    "description",
    [
        pytest.param(GOOD, id="the least"),
        pytest.param(GOOD.replace("bfloat16", "float16"), id="float16"),
        pytest.param(GOOD.replace("inputs", "first_input"), id="first_input"),
        pytest.param(GOOD.replace("inputs", "fp32"), id="fp32"),
        pytest.param(GOOD + 'name = "A-b_c+d.0"', id="name"),
        pytest.param(GOOD + f'name = "{"x" * 64}"', id="64 letters"),
        pytest.param(GOOD + 'source = "a paper"\ndevice = "cuda"', id="source and device"),
        pytest.param(GOOD + 'low_dtypes = ["bfloat16"]', id="one low dtype"),
        pytest.param(GOOD + 'low_dtypes = ["float16", "bfloat16"]', id="both low dtypes"),
        pytest.param(GOOD + 'low_dtypes = ["bfloat16", "bfloat16"]', id="a low dtype twice"),
        pytest.param(GOOD + "error = []", id="no errors"),
        pytest.param(GOOD + 'error = ["mm", "pow.Tensor_Scalar", "relu@float16", "gelu@bf16"]', id="errors"),
        pytest.param(GOOD + "cache = false", id="no cache"),
        pytest.param(GOOD + 'compiled = "exact"', id="compiled: exact"),
        pytest.param(GOOD + 'compiled = "fused"', id="compiled: fused"),
    ],
)
def test_accepted_by_both(description, tmp_path):
    load(tmp_path, description)
    VALIDATOR.validate(tomllib.loads(description))


@pytest.mark.parametrize(
    "description",
    [
        pytest.param("", id="empty"),
        pytest.param('rest = "inputs"', id="no low_dtype"),
        pytest.param('low_dtype = "bfloat16"', id="no rest"),
        pytest.param(GOOD + "rset = 1", id="unknown key"),
        pytest.param(GOOD + "[lower]", id="unknown table"),
        pytest.param(GOOD + "name = 3", id="name: a number"),
        pytest.param(GOOD + 'name = ""', id="name: empty"),
        pytest.param(GOOD + 'name = "a b"', id="name: a blank"),
        pytest.param(GOOD + 'name = "ä"', id="name: no ASCII"),
        pytest.param(GOOD + f'name = "{"x" * 65}"', id="name: 65 letters"),
        pytest.param(GOOD + "source = 3", id="source: a number"),
        pytest.param(GOOD + 'device = ["cpu"]', id="device: a list"),
        pytest.param('low_dtype = 16\nrest = "inputs"', id="low_dtype: a number"),
        pytest.param('low_dtype = "int8"\nrest = "inputs"', id="low_dtype: int8"),
        pytest.param('low_dtype = "bf16"\nrest = "inputs"', id="low_dtype: short"),
        pytest.param('low_dtype = "bfloat16"\nrest = "low"', id="rest: low"),
        pytest.param('low_dtype = "bfloat16"\nrest = "promote"', id="rest: promote"),
        pytest.param('low_dtype = "bfloat16"\nrest = true', id="rest: a boolean"),
        pytest.param(GOOD + 'low_dtypes = "bfloat16"', id="low_dtypes: a string"),
        pytest.param(GOOD + "low_dtypes = []", id="low_dtypes: none"),
        pytest.param(GOOD + 'low_dtypes = ["bfloat16", "float32"]', id="low_dtypes: float32"),
        pytest.param(GOOD + "low_dtypes = [[1], 2]", id="low_dtypes: no strings"),
        pytest.param(GOOD + 'low_dtypes = ["float16"]', id="low_dtype is none of them: bfloat16"),
        pytest.param(
            GOOD.replace("bfloat16", "float16") + 'low_dtypes = ["bfloat16"]', id="low_dtype is none of them: float16"
        ),
        pytest.param(GOOD + 'error = "mm"', id="error: a string"),
        pytest.param(GOOD + "error = [1]", id="error: numbers"),
        pytest.param(GOOD + 'error = ["m m"]', id="error: a blank"),
        pytest.param(GOOD + 'error = ["torch.nn.relu"]', id="error: two dots"),
        pytest.param(GOOD + 'error = ["mm@float32"]', id="error: @float32"),
        pytest.param(GOOD + 'error = ["mm in head"]', id="error: in some modules"),
        pytest.param(GOOD + 'error = ["+mm"]', id="error: an edit"),
        pytest.param(GOOD + 'cache = "yes"', id="cache: a string"),
        pytest.param(GOOD + "cache = 0", id="cache: a number"),
        pytest.param(GOOD + "compiled = true", id="compiled: a boolean"),
        pytest.param(GOOD + 'compiled = "fast"', id="compiled: another word"),
        pytest.param(GOOD + "compiled = []", id="compiled: a list"),
    ],
)
def test_refused_by_both(description, tmp_path):
    with pytest.raises(ValueError, match=r"policy\.toml: "):
        load(tmp_path, description)
    assert not VALIDATOR.is_valid(tomllib.loads(description))
