"""The schema of reports accepts those that this version writes, and no others; docs/report-json.md has each of its keys."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import fake_reports
import jsonschema
import pytest
import torch
from click.testing import CliRunner
from torch import mm
from torch._inductor.utils import fresh_cache

from habana_mp import hmp
from habana_mp._report.form import schema
from habana_mp.cli import main

SCHEMA = schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
PAGE = Path(__file__).parent.parent.parent / "docs" / "report-json.md"


def step(model):
    hidden = model(torch.randn(8, 16))
    hidden = torch.softmax(hidden @ hidden.T, -1) @ hidden
    ids = hidden.argmax(-1)  # integers and float64, too
    (hidden.double().sum() + ids.sum()).backward()


def model():
    return torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.LayerNorm(16), torch.nn.Softmax(-1))


def empty():
    with hmp.report() as report:
        pass
    return report


def converted():
    hmp.convert()
    with hmp.report() as report:
        step(model())
        mm(torch.randn(2, 2), torch.randn(2, 2))  # held since before convert
    return report


def region():
    with hmp.autocast("cpu", policy="hmp"), hmp.report() as report:
        step(model())
        with hmp.disable_casts():
            torch.ones(2, 2) @ torch.ones(2, 2)
        torch.linalg.inv(torch.eye(2).bfloat16())
    return report


def outside():
    with hmp.report() as report:
        step(model())
    return report


def values():
    with hmp.autocast("cpu", policy="hmp"), hmp.report(values=True, formats=["int8"]) as report:
        step(model())
    return report


def errors():
    with hmp.autocast("cpu", torch.float16, policy="torch-cuda"), hmp.report(values="errors") as report:
        step(model())
    return report


def compiled():
    product, x = torch.compile(torch.mul), torch.randn(4, 4)
    with fresh_cache(), hmp.autocast("cpu", policy=hmp.Policy.from_ops(["mul"])), hmp.report() as report:
        product(x, x)
    return report


def projected():
    with hmp.autocast("cpu", policy="hmp"), hmp.report(values=True) as report:
        report.project(model()(torch.randn(8, 16)))
    return report


def overflowed():
    """Infinities, which JSON does not have."""
    with hmp.autocast("cpu", torch.float16), hmp.report(values=True) as report:
        layer = torch.nn.Linear(8, 8)
        (layer(torch.full((2, 8), 1e6)).float() / 0).sum().backward()
    return report


def unmeasured():
    layer = torch.nn.LSTM(16, 8)
    with hmp.autocast("cpu", policy="torch-cpu"), hmp.report(values=True) as report:
        layer(torch.randn(3, 2, 16))[0].float().sum().backward()
        torch.ones(4) + torch.ones(4, dtype=torch.float64)
    return report


def chosen():
    with hmp.autocast("cpu", policy="hmp"), hmp.report(values=True) as report:
        best = model()(torch.randn(64, 16)).topk(2, -1)
        (best.values * best.indices).float().sum().backward()
    return report


def steps():
    layers = model()
    optimizer = torch.optim.AdamW(layers.parameters(), foreach=False)
    with hmp.report(values=True, wait=1, warmup=1, active=2) as report:
        for _ in range(5):
            with hmp.autocast("cpu", policy="hmp"):
                step(layers)
            optimizer.step()
            report.step()
    return report


def ranks():
    return hmp.CastReport.merged([converted(), region()])


def ranks_with_values():
    return hmp.CastReport.merged([values(), values()])


def one_rank():
    return hmp.CastReport.merged([empty()])


def ranks_of_ranks():
    return hmp.CastReport.merged([ranks(), steps()])


KINDS = [
    empty, converted, region, outside, values, errors, compiled, projected, overflowed, steps, unmeasured, chosen,
    ranks, ranks_with_values, one_rank, ranks_of_ranks,
]  # fmt: skip


@pytest.fixture(autouse=True)
def reverted():
    yield
    hmp.revert()


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_reports_are_valid(kind, tmp_path):
    path = tmp_path / "report.json"
    kind().to_json(path)
    VALIDATOR.validate(json.loads(path.read_text()))
    assert hmp.CastReport.load(path).to_dict() == json.loads(path.read_text())


def test_what_the_command_writes_is_valid(tmp_path):
    script, path = tmp_path / "train.py", tmp_path / "report.json"
    script.write_text("import torch\n(torch.ones(2, 2) @ torch.ones(2, 2)).softmax(-1)\n")
    done = CliRunner().invoke(main, ["report", "--values", "--json", str(path), str(script)])
    assert done.exit_code == 0, done.output
    VALIDATOR.validate(json.loads(path.read_text()))


def test_the_kinds_together_have_every_key():
    """So no key of the schema is one that no report has."""
    seen = set().union(*(paths_of(json.loads(kind().to_json())) for kind in KINDS))
    # On a CPU, only the recurrent layer of oneDNN has a backward pass that may not run again.
    left_out = set() if torch.ops.mkldnn._is_mkldnn_bf16_supported() else {"rows[].unmeasured_backward"}
    assert {path for path, _ in described(SCHEMA)} - seen == left_out


def paths_of(value, path=""):
    """The keys in a report, as the table of the page names them."""
    if isinstance(value, list):
        return set().union(*(paths_of(each, f"{path}[]") for each in value))
    if not isinstance(value, dict):
        return set()
    found = set()
    for key, each in value.items():
        inner = f"{path}.{key}".removeprefix(".")
        found |= {inner} | paths_of(each, inner)
    return found


def described(schema, path=""):
    """Each key of a schema with its description, in the order of the schema."""
    if "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
    for key, each in schema.get("properties", {}).items():
        inner = f"{path}.{key}".removeprefix(".")
        yield inner, each["description"]
        yield from described(each, inner)
    if isinstance(schema.get("items"), dict):
        yield from described(schema["items"], f"{path}[]")


def objects(schema):
    """Every schema of an object in a schema."""
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield schema
        for each in schema.values():
            yield from objects(each)


def test_the_command_prints_it():
    done = CliRunner().invoke(main, ["report", "--schema"])
    assert (done.exit_code, json.loads(done.stdout)) == (0, SCHEMA)


def test_the_page_has_every_key():
    """The page repeats the descriptions, because a reader of the page does not have the schema at hand."""
    table = re.findall(r"^\| `([^`]+)` \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    plain = [(key, text.replace("`", "")) for key, text in table]
    expected = {}  # a type that several keys have is described once
    for key, text in described(SCHEMA):
        shared = re.sub(r"^(rows\[\]\.values)\.(low|backward|formats\[\]\.error)\.", r"\1.ran.", key)
        shared = re.sub(r"^ranks\[\]\.(?!rank$|casts_of$)", "", shared)
        expected.setdefault(shared, text)
    assert plain == list(expected.items())


def test_every_object_is_closed():
    for each in objects(SCHEMA):
        assert "additionalProperties" in each
        if "properties" in each:
            assert each["additionalProperties"] is False
            assert set(each["required"]) <= set(each["properties"])


def place(values, path):
    for key in path:
        values = values[key]
    return values


UNKNOWN = [(), ("rows", 0), ("rows", 0, "casts", 0), ("rows", 0, "casts", 0, "backward"), ("ping_pong", 0),
           ("ping_pong", 0, "ops", 0), ("recast", 0), ("never_seen", 0), ("missed", 0), ("timeline",), ("advice", 0),
           ("policies", 0)]  # fmt: skip


def made_up():
    """The made-up report, with the keys that reports of older versions lack."""
    values = copy.deepcopy(fake_reports.small()) | {
        "rank": 0,
        "backward_seconds": 0.0,
        "optimizer_seconds": 0.0,
        "compiled": [],
        "forked_casts": 0,
        "backward_raised": 0,
    }
    for row in values["rows"]:
        row["made_bytes"] = {"float32": 8}
    return values


@pytest.mark.parametrize("path", UNKNOWN, ids=lambda path: ".".join(map(str, path)) or "report")
def test_an_unknown_key_is_refused(path):
    values = made_up()
    VALIDATOR.validate(values)
    place(values, path)["colour"] = "red"
    with pytest.raises(jsonschema.ValidationError, match="'colour' was unexpected"):
        VALIDATOR.validate(values)


@pytest.mark.parametrize("path", UNKNOWN, ids=lambda path: ".".join(map(str, path)) or "report")
def test_a_missing_key_is_refused(path):
    for key in place(made_up(), path):
        values = made_up()
        del place(values, path)[key]
        assert not VALIDATOR.is_valid(values), key


@pytest.mark.parametrize(
    ("path", "value"),
    [
        pytest.param(("version",), 2, id="version 2"),
        pytest.param(("format",), "report", id="another format"),
        pytest.param(("casts",), -1, id="a negative count"),
        pytest.param(("casts",), 1.5, id="half a cast"),
        pytest.param(("casts",), 1 << 64, id="a count over 2^64"),
        pytest.param(("seconds",), -0.5, id="a negative time"),
        pytest.param(("rows", 0, "decision"), "lowered", id="an unknown decision"),
        pytest.param(("rows", 0, "front_end"), "jit", id="an unknown front end"),
        pytest.param(("rows", 0, "casts", 0, "to"), "float64", id="a cast to float64"),
        pytest.param(("rows", 0, "dtypes"), ["int4"], id="a dtype without a name"),
        pytest.param(("rows", 0, "dtypes"), ["float32", "float32"], id="a dtype twice"),
        pytest.param(("rows", 0, "unmeasured"), {}, id="no reason"),
        pytest.param(("rows", 0, "made_bytes"), {"int4": 3}, id="bytes of such a dtype"),
        pytest.param(("timeline", "stride"), 0, id="a stride of 0"),
        pytest.param(("timeline", "events"), [[0.1, 0.1]], id="half an event"),
        pytest.param(("timeline", "events"), [[0.1, 0.1, 0, "float32", "bfloat16", "lost"]], id="an unknown kind"),
        pytest.param(("timeline", "events"), [[0.1, 0.1, 0, "float32", "bfloat16", "cast", 1]], id="an event of 7"),
        pytest.param(("advice",), [{"text": "", "evidence": ""}] * 6, id="six lines of advice"),
    ],
)
def test_a_wrong_value_is_refused(path, value):
    values = made_up()
    place(values, path[:-1])[path[-1]] = value
    assert not VALIDATOR.is_valid(values)


def test_reports_of_ranks_have_both_keys():
    assert not VALIDATOR.is_valid(made_up() | {"ranks": [ranks().to_dict()["ranks"][0]]})
    assert not VALIDATOR.is_valid(made_up() | {"uneven": []})
