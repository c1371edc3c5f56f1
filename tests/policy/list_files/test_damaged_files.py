"""A thousand damaged copies of each kind of file that is read: each is a value that works in all its uses, or a ValueError with the file."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fake_reports
import jsonschema
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from habana_mp import hmp
from habana_mp.cli import main

COPIES = 1000
EXTREMES = [0, 1, 2**63, 2**64 - 1, 2**64, 10**400, -1, 0.5, -0.5, 1e-320, 1e200, 1e300]
JUNK = [None, True, "text", "", "bfloat16", "float32", "\ud800", "\0\x1b[31m", [], {}, [1], ["x"], {"x": 1}]
TOKENS = ["+", "-", ":", "@", "#", " in ", "*", ".", "\0", "\x1b", "\r", "\ufeff", "[", "{", '"', "=", "mm", "linear:fp32", "9" * 400, "é"]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield (*path, key)
        yield from places(each, (*path, key))


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def in_values(value: Any, drawn: random.Random) -> Any:
    """A copy in which something is gone, another value, in another place, under another key or there twice."""
    value = copy.deepcopy(value)
    for _ in range(drawn.choice([1, 1, 1, 3, 10])):
        every = [*places(value)]
        if not every:
            return value
        path = drawn.choice(every)
        inner, key, old = at(value, path[:-1]), path[-1], at(value, path)
        if isinstance(old, (int, float)) and not isinstance(old, bool) and drawn.random() < 0.8:
            inner[key] = drawn.choice([*EXTREMES, -old, old * 3])
        else:
            way = drawn.randrange(5)
            if way == 0:
                del inner[key]
            elif way == 1:
                inner[key] = drawn.choice([*JUNK, *EXTREMES])
            elif way == 2:
                inner[key] = copy.deepcopy(at(value, drawn.choice(every)))
            elif way == 3 and isinstance(inner, dict):
                inner[drawn.choice(["op", "count", "values", "x"])] = inner.pop(key)
            elif isinstance(inner, list):
                inner.append(copy.deepcopy(old))
    return value


def in_text(text: str, drawn: random.Random) -> bytes:
    """A copy that is cut, or has bytes changed, out of place or too many."""
    data = bytearray(text.encode())
    for _ in range(drawn.choice([1, 1, 2, 5])):
        place = drawn.randrange(len(data) + 1)
        end = min(len(data), place + drawn.choice([1, 3, 30]))
        way = drawn.randrange(5)
        if way == 0:
            del data[place:end]
        elif way == 1:
            data[place:place] = drawn.choice(TOKENS).encode()
        elif way == 2:
            data[place:place] = data[drawn.randrange(len(data) + 1) :][:30]
        elif way == 3:
            data[place:end] = bytes(drawn.randrange(256) for _ in range(end - place))
        elif drawn.random() < 0.2:
            del data[place:]
    return bytes(data)


def damaged(text: str, seed: int) -> bytes:
    """Two of three copies of JSON are JSON."""
    drawn = random.Random(seed)
    if text.startswith("{") and seed % 3:
        return json.dumps(in_values(json.loads(text), drawn)).encode()
    return in_text(text, drawn)


def all_of(path: Path, text: str, use: Any, copies: int = COPIES) -> int:
    """How many copies were accepted, and used. ``use`` reads the file and calls the function that it is given before it uses what it has read."""
    accepted = 0
    for seed in range(copies):
        path.write_bytes(damaged(text, seed))
        accepted += is_accepted(path, use, f"copy {seed}")
    return accepted


def is_accepted(path: Path, use: Any, copy: str) -> bool:
    read: list[bool] = []
    refused = ""
    try:
        use(lambda: read.append(True))
    except ValueError as error:
        refused = str(error) or "ValueError"
    except BaseException as error:
        raise AssertionError(copy) from error
    assert not (read and refused), (copy, refused)
    assert read or os.fspath(path) in refused, (copy, refused)
    assert len(refused) < 5000, copy
    return bool(read)


@pytest.fixture(autouse=True)
def quiet():
    """Names that torch does not have, and settings without effect."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.last(nn.functional.gelu(self.norm(self.first(x))) + 1), -1)


def measured() -> hmp.CastReport:
    torch.manual_seed(0)
    with hmp.autocast("cpu", policy="hmp"), hmp.report(values=True) as report:
        (Net()(torch.randn(4, 8)).float() * torch.randn(4, 4)).sum().backward()
    return report


def projected() -> hmp.CastReport:
    with hmp.autocast("cpu", policy="hmp"), hmp.report(values=True) as report:
        report.project(Net()(torch.randn(4, 8)))
    return report


def choosing() -> hmp.CastReport:
    """With the margins of what topk chooses, and what other choices are worth."""
    torch.manual_seed(0)
    router, experts = nn.Linear(8, 16), nn.Linear(8, 16)
    with hmp.autocast("cpu", policy="hmp"), hmp.report(values=True) as report:
        for _ in range(2):
            x = torch.randn(64, 8)
            weights, chosen = torch.topk(router(x).float().softmax(-1), 2)
            (experts(x).float().gather(-1, chosen) * weights).sum().backward()
    assert report.to_dict()["choices_worth"]
    return report


class Scalars:
    def add_scalar(self, name: str, value: float, step: object) -> None:
        assert isinstance(value, float), name


def uses(report: hmp.CastReport, other: hmp.CastReport) -> None:
    merged = [hmp.CastReport.merged([report, other]), hmp.CastReport.merged([other, report])]
    assert report.to_html()
    assert merged[0].to_html()
    for each in (report, *merged):
        assert str(each)
        assert repr(each)
        json.loads(each.to_json(), parse_constant=pytest.fail)
        json.loads(each.to_chrome_trace(), parse_constant=pytest.fail)
        each.to_tensorboard(Scalars())
        assert each.casts() == sum(row.casts for row in each.rows) >= 0
        assert len(each.advice) <= 5
    for one, two in ((report, other), (other, report)):
        assert str(one.diff(two))
    assert report.diff(other).to_html()
    asks = [report.error_shares, report.errors, report.presets, report.edits, lambda: report.edits("module")]
    values = report.to_dict()
    choices = {
        each["loss"] for row in values["rows"] for each in row.get("values", {}).get("losses", []) if each.get("choice")
    }
    losses = [each["loss"] for each in values.get("losses", []) if "choice" not in each and each["loss"] not in choices]
    loss = losses[0] if losses else None  # it is asked which one, if there are several
    for ask in (report.local_error, report.error_share, partial(report.loss_change, loss=loss)):
        asks += [ask, lambda ask=ask: ask(what_if=True), lambda ask=ask: ask("linear")]
    for ask in (*asks, lambda: report.local_error(backward=True)):
        with contextlib.suppress(RuntimeError):  # what was not measured
            ask()


@pytest.mark.parametrize(
    "made",
    [measured, projected, choosing, lambda: hmp.CastReport.merged([measured(), projected()]), fake_reports.small],
    ids=["values", "projected", "choices", "merged", "plain"],
)
def test_reports(made, tmp_path):
    path, original = tmp_path / "report.json", made()
    whole = original if isinstance(original, hmp.CastReport) else None
    path.write_text(json.dumps(original) if whole is None else whole.to_json())
    text, other = path.read_text(), whole or hmp.CastReport.load(path)
    schema = jsonschema.Draft202012Validator(json.loads(CliRunner().invoke(main, ["report", "--schema"]).stdout))

    def use(read):
        report = hmp.CastReport.load(path)
        read()
        uses(report, other)
        others = {error.validator for error in schema.iter_errors(report.to_dict())}
        assert others <= {"additionalProperties"}, "what the reader accepts, the schema accepts, but for unknown keys"

    assert all_of(path, text, use, COPIES // 4) > COPIES / 200


def test_files_of_a_search(tmp_path):
    path, net = tmp_path / "search.json", Net()
    x = torch.randn(4, 8)

    def search():
        return hmp.tune(lambda: net(x), 1e-2, cost="numbers", resume=path)

    found = search()

    def use(read):
        again = search()
        read()
        assert again.to_dict() == found.to_dict()
        path.unlink()

    assert all_of(path, path.read_text(), use) > 0


def uses_of_policy(policy: hmp.Policy) -> None:
    assert hmp.Policy.load(str(policy)) == policy
    assert policy.rule("linear").action
    assert policy.with_edits("+softmax:fp32").rule("softmax").action == "fp32"
    assert repr(policy)


TOML = 'name = "mine"\nsource = "me"\nlow_dtype = "bfloat16"\nlow_dtypes = ["bfloat16", "float16"]\nrest = "inputs"\nerror = ["bce"]\ncache = true\n'
LIST = "# mine\nlinear  # the layers\nmatmul\nmm@float16\nsoftmax in *.head\naten.pow.Tensor_Scalar\nlayer_norm\n"
EDITED = "-linear\n+relu  # try\n-mm@float16\n+mul in *.rotary_emb\n"
CONFIG = json.dumps(
    {"use_fused_adam": True, "use_habana_mixed_precision": True, "hmp_opt_level": "O1", "hmp_is_verbose": False,
     "hmp_bf16_ops": ["linear", "mm"], "hmp_fp32_ops": ["softmax", "exp"]}
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text"),
    [("policy.toml", TOML), ("lower.txt", LIST), ("fp32.since-2.13.txt", EDITED), ("gaudi_config.json", CONFIG)],
    ids=lambda value: value if value.endswith((".toml", ".txt", ".json")) else "",
)
def test_policies(name, text, tmp_path):
    if name != "gaudi_config.json":
        for each in ("lower.txt", "fp32.txt", "promote.txt"):
            (tmp_path / each).write_text("")
        (tmp_path / "policy.toml").write_text(TOML)

    def use(read):
        policy = hmp.Policy.load(tmp_path)
        read()
        uses_of_policy(policy)

    assert all_of(tmp_path / name, text, use) > COPIES / 50


@pytest.mark.parametrize("text", [LIST, EDITED], ids=["names", "edits"])
def test_list_files(text, tmp_path):
    path = tmp_path / "lower.txt"

    def use(read):
        policy = hmp.Policy.from_files(lower=path)
        read()
        uses_of_policy(policy)

    assert all_of(path, text, use) > COPIES / 50


def test_files_of_edits(tmp_path):
    path = tmp_path / "edits.txt"
    text = "# for accuracy\n+softmax:fp32  # makes 40 %\n-linear\n+mm@float16:fp32\n+mul in *.rotary_emb:fp32\n+exp:lower\n"

    def use(read):
        done = CliRunner().invoke(main, ["explain", "linear", "--edit", str(path)])
        if done.exit_code == 2:
            raise ValueError(done.stderr)
        read()
        assert done.exit_code == 0, done.exception

    assert all_of(path, text, use) > COPIES / 50
