"""What two recordings were made with, where it differs: versions, machine, threads, policy. It makes no comparison differ."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from msgspec import structs

from habana_mp import hmp
from habana_mp._evidence.recordings import file
from tests.evidence.recordings.programs import record

X = torch.linspace(-1, 1, 64)


def step():
    return torch.exp(X)


@pytest.fixture
def rewritten(here):
    """a.rec as it is, and b.rec as if it had been made otherwise."""
    record("a.rec", step)

    def write(**changes):
        kept = file.load("a.rec")
        file.save(replace(kept, about=structs.replace(kept.about, **changes)), "b.rec")

    return write


@pytest.mark.parametrize(
    ("changes", "name", "value"),
    [
        ({"torch": "2.0.0"}, "torch", "2.0.0"),
        ({"habana_mp": "0.0.1"}, "habana_mp", "0.0.1"),
        ({"python": "3.9.0"}, "Python", "3.9.0"),
        ({"machine": "aarch64"}, "machine", "aarch64"),
        ({"cpu": "Another CPU"}, "CPU", "Another CPU"),
        ({"instructions": "NONE"}, "instruction set", "NONE"),
        ({"threads": 99}, "threads", "99"),
        ({"devices": ["cpu", "cuda"]}, "devices", "cpu cuda"),
        ({"policy_name": "mine"}, "policy", "mine"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_differs_is_noted(changes, name, value, rewritten):
    rewritten(**changes)
    found = hmp.compare("a.rec", "b.rec")
    assert found.same
    ((own, (a, b)),) = found.environment_diff.items()
    assert (own, b) == (name, value)
    line = f"a: {name} {a}, b: {name} {value}"
    assert line in str(found).splitlines()
    assert line in found.to_html()
    assert repr(found) == f"<Comparison: a.rec and b.rec, the same numbers, other {name}>"
    assert found.to_dict()["environment_diff"] == {name: [a, b]}
    beside = hmp.compare(step, "b.rec")
    assert (beside.same, beside.environment_diff) == (True, {name: (value, a)})


def test_several_are_in_one_line(rewritten):
    rewritten(torch="2.0.0", threads=99)
    found = hmp.compare("a.rec", "b.rec")
    here = torch.__version__, torch.get_num_threads()
    assert str(found).splitlines()[2] == f"a: torch {here[0]}, threads {here[1]}, b: torch 2.0.0, threads 99"


def test_equal_ones_are_not_noted(here):
    record("a.rec", step)
    for found in (hmp.compare("a.rec", "a.rec"), hmp.compare(step, "a.rec"), hmp.compare(step, step)):
        assert (found.environment_diff, found.environments()) == ({}, "")
        assert "environments" not in found.to_html()


def test_the_policy_of_a_step_beside_a_recording_is_that_of_its_region(here):
    record("a.rec", step)
    with hmp.autocast("cpu", policy="hmp"):
        found = hmp.compare(step, "a.rec")
        record("b.rec", step)
    assert found.environment_diff == {"policy": ("no policy", "hmp")}
    assert hmp.compare("a.rec", "b.rec").environment_diff == {"policy": ("no policy", "hmp")}
    with hmp.autocast("cpu", policy="torch-cpu"):
        found = hmp.compare(step, "b.rec")
    assert found.policy_diff == hmp.compare(step, "hmp", "torch-cpu").policy_diff != None  # noqa: E711
