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
    "too large for a float": (as_text(fake_reports.empty()).replace('"seconds": 0.0', '"seconds": 1e999'), "seconds must be a time in seconds, 0 or more, not inf"),
    "5000 digits": (as_text(fake_reports.empty()).replace('"casts": 0', '"casts": ' + "9" * 5000), "not a report: Exceeds the limit"),
    "400 digits": (as_text(fake_reports.empty()).replace('"casts": 0', '"casts": ' + "9" * 400), "casts must be a count"),
    "a huge time": (changed("seconds", to=10**400), "seconds must be a count"),
    "rows: 3": (changed("rows", to=3), "rows must be a list, not 3"),
    "a row that is none": (changed("rows", 1, to=None), r"rows\[1\] must be an object, not None"),
    "a row without op": (changed("rows", 0, "op", to=KeyError), r"rows\[0\] must be an object with the key 'op'"),
    "an op that is a list": (changed("rows", 0, "op", to=["mm"]), r"rows\[0\].op must be a string"),
    "negative calls": (changed("rows", 0, "calls", to=-1), r"rows\[0\].calls must be a count: .* not -1"),
    "half a call": (changed("rows", 0, "calls", to=1.5), r"rows\[0\].calls must be a count"),
    "calls that are true": (changed("rows", 0, "calls", to=True), r"rows\[0\].calls must be a count: .* not True"),
    "negative time": (changed("rows", 0, "seconds", to=-0.5), r"rows\[0\].seconds must be a time in seconds"),
    "dtypes that are a string": (changed("rows", 0, "dtypes", to="float32"), r"rows\[0\].dtypes must be a list"),
    "no title": (changed("title", to=7), "title must be a string"),
    "no torch": (changed("torch", to=KeyError), "not a report: it must be an object with the key 'torch'"),
    "an event of no row": (changed("timeline", "events", to=[[0.1, 0.1, 99999, "float32", "bfloat16", "cast"]]), r"timeline.events\[0\]\[2\] must be the number of one of \d+ rows"),
    "half an event": (changed("timeline", "events", to=[[0.1, 0.1]]), r"timeline.events\[0\] must be a list of 6 values"),
    "ranks that are a number": (changed("ranks", to=2), "ranks must be a list"),
    "advice without evidence": (changed("advice", to=[{"text": "x"}]), r"advice\[0\] must be an object with the key 'evidence'"),
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
        with pytest.raises(ValueError, match=rf"{path}\[0\]\.{key} must be "):
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


def test_a_file_of_over_256_mib(tmp_path):
    path = tmp_path / "report.json"
    path.touch()
    os.truncate(path, (256 << 20) + 1)
    with pytest.raises(ValueError, match=r"report\.json: the file is larger than 256 MiB"):
        hmp.CastReport.load(path)


def test_keys_of_a_later_version_are_left_alone(tmp_path):
    assert load(tmp_path, {**fake_reports.small(), "new": {"any": [None]}}).to_dict()["new"] == {"any": [None]}
