"""Reports in files: what ``CastReport.load`` accepts, and what it says of anything else."""

from __future__ import annotations

import copy
import json
import os

import fake_reports
import pytest
import torch

from habana_mp import hmp

DEEP = "[" * 200_000


def changed(*path, to):
    values = copy.deepcopy(fake_reports.small())
    *way, last = path
    inner = values
    for key in way:
        inner = inner[key]
    if to is KeyError:
        del inner[last]
    else:
        inner[last] = to
    return values


def as_text(values):
    return values if isinstance(values, str) else json.dumps(values)


def load(tmp_path, values):
    path = tmp_path / "report.json"
    path.write_text(as_text(values), encoding="utf-8")
    return hmp.CastReport.load(path)


WRONG = {
    "nested": (DEEP, "its values are nested too deeply"),
    "nested in a report": (json.dumps(fake_reports.empty()).replace('"rows": []', f'"rows": {DEEP}'), "too deep"),
    "NaN": (changed("seconds", to=float("nan")), "NaN is not a number of a report"),
    "Infinity": (changed("rows", 0, "seconds", to=float("-inf")), "-Infinity is not a number of a report"),
    "too large for a float": (as_text(fake_reports.empty()).replace('"seconds": 0.0', '"seconds": 1e999'), r"Expected `float` <= 1e\+200 at `\$\.seconds`"),
    "5000 digits": (as_text(fake_reports.empty()).replace('"casts": 0', '"casts": ' + "9" * 5000), "not a report: Exceeds the limit"),
    "400 digits": (as_text(fake_reports.empty()).replace('"casts": 0', '"casts": ' + "9" * 400), "9{30}... is not a number of a report"),
    "a huge time": (changed("seconds", to=10**400), "10{29}... is not a number of a report"),
    "rows: 3": (changed("rows", to=3), r"Expected `array`, got `int` at `\$\.rows`"),
    "a row that is none": (changed("rows", 1, to=None), r"Expected `object`, got `null` at `\$\.rows\[1\]`"),
    "a row without op": (changed("rows", 0, "op", to=KeyError), r"Object missing required field `op` at `\$\.rows\[0\]`"),
    "an op that is a list": (changed("rows", 0, "op", to=["mm"]), r"Expected `str`, got `array` at `\$\.rows\[0\]\.op`"),
    "negative calls": (changed("rows", 0, "calls", to=-1), r"Expected `int` >= 0 at `\$\.rows\[0\]\.calls`"),
    "half a call": (changed("rows", 0, "calls", to=1.5), r"Expected `int`, got `float` at `\$\.rows\[0\]\.calls`"),
    "calls that are true": (changed("rows", 0, "calls", to=True), r"Expected `int`, got `bool` at `\$\.rows\[0\]\.calls`"),
    "negative time": (changed("rows", 0, "seconds", to=-0.5), r"Expected `float` >= 0.0 at `\$\.rows\[0\]\.seconds`"),
    "dtypes that are a string": (changed("rows", 0, "dtypes", to="float32"), r"Expected `array`, got `str` at `\$\.rows\[0\]\.dtypes`"),
    "values without an error": (changed("rows", 0, "values", to={key: value for key, value in fake_reports.values().items() if key != "ran"}), r"Object missing required field `ran` at `\$\.rows\[0\]\.values`"),
    "an event of seven": (changed("timeline", "events", to=[[0.1, 0.1, 0, "float32", "bfloat16", "cast", 1]]), r"`array` of at most length 6, got 7 at `\$\.timeline\.events\[0\]`"),
    "more choices that differ than choices": (changed("rows", 0, "values", to=fake_reports.values(choices=1, flipped=2)), r"flipped must be at most choices \(1\), not 2 at `\$\.rows\[0\]\.values`"),
    "values without edges": ({**fake_reports.small(), "low_dtype": "bfloat16", "projected_squares": 0.0}, "a report with low_dtype must have projected_squares and edges"),
    "no title": (changed("title", to=7), r"Expected `str`, got `int` at `\$\.title`"),
    "no torch": (changed("torch", to=KeyError), "not a report: Object missing required field `torch`"),
    "a dtype twice": (changed("rows", 0, "runs_in", to=["bfloat16", "bfloat16"]), r"runs_in must be different ones"),
    "an event of no row": (changed("timeline", "events", to=[[0.1, 0.1, 99999, "float32", "bfloat16", "cast"]]), r"timeline.events must have numbers of \d+ rows, not 99999"),
    "half an event": (changed("timeline", "events", to=[[0.1, 0.1]]), r"Expected `array` of at least length 6, got 2 at `\$\.timeline\.events\[0\]`"),
    "ranks that are a number": (changed("ranks", to=2), r"Expected `array`, got `int` at `\$\.ranks`"),
    "advice without evidence": (changed("advice", to=[{"text": "x"}]), r"Object missing required field `evidence` at `\$\.advice\[0\]`"),
    "a version that is a list": (changed("version", to=[[1] * 1000]), r"a report of version \[\["),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_file_of_another_form_is_refused(tmp_path, case):
    values, message = WRONG[case]
    with pytest.raises(ValueError, match=message) as raised:
        load(tmp_path, values)
    assert str(raised.value).startswith(f"{tmp_path}/report.json: ")
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize("path", ["rows", "ping_pong", "recast", "never_seen", "missed", "advice", "policies"])
def test_every_key_of_every_part_is_checked(tmp_path, path):
    """A value of a wrong type, whatever its place, ends in a ValueError and not in a traceback of who reads it later."""
    values = fake_reports.small()
    assert values[path], "the made-up report has some"
    for key in values[path][0]:
        with pytest.raises(ValueError, match=rf"not a report: .* at `\$\.{path}\[0\]\.{key}"):
            load(tmp_path, changed(path, 0, key, to={"other": None}))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_report_is_read_back(tmp_path, encoding):
    with hmp.autocast("cpu"), hmp.report() as report:
        layer = torch.nn.Linear(2, 2)
        layer(torch.ones(2, 2)).sum().backward()
    merged = hmp.CastReport.merged([report, report])
    for each in (report, merged):
        path = tmp_path / "report.json"
        path.write_text(each.to_json(), encoding=encoding)
        again = hmp.CastReport.load(path)
        assert again.to_dict() == json.loads(each.to_json())
        assert str(again) == str(each)
        assert again.to_html()


def test_edges_without_a_low_dtype_are_accepted(tmp_path):
    """Where a report without values was the first of some that were merged."""
    assert load(tmp_path, {**fake_reports.small(), "edges": [[-1, 0, "float32", 1, 8]]}).casts() == 24


def test_a_file_of_over_256_mib(tmp_path):
    path = tmp_path / "report.json"
    path.touch()
    os.truncate(path, (256 << 20) + 1)
    with pytest.raises(ValueError, match=r"report\.json: the file is larger than 256 MiB"):
        hmp.CastReport.load(path)


def test_keys_of_a_later_version_are_left_out(tmp_path):
    report = load(tmp_path, {**fake_reports.small(), "new": {"any": [None]}})
    assert report.to_dict() == load(tmp_path, fake_reports.small()).to_dict()
