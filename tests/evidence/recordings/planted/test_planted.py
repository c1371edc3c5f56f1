"""Differences planted in another process: the recordings name the op that makes them, and those of equal runs name none."""

from __future__ import annotations

import pytest

from habana_mp import hmp
from tests.evidence.recordings.planted.child import file_of, seeded
from tests.evidence.recordings.programs import record
from zoo.differences import LOWERED, STEPS, is_named, net, step_of


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    path = tmp_path_factory.mktemp("plain") / "plain.rec"
    record(path, step_of(net()))
    return path


@pytest.mark.parametrize("name", STEPS)
def test_a_planted_difference_is_named(name, plain, recorded_by):
    planted = STEPS[name]
    found = hmp.compare(plain, recorded_by("planted") / file_of(name))
    assert not found.same
    assert is_named(found, planted.ops, planted.module, planted.phase), str(found)


@pytest.mark.parametrize("name", STEPS)
def test_a_planted_difference_is_named_beside_a_recording(name, recorded_by):
    planted, changed = STEPS[name], net()
    planted.change(changed)
    found = hmp.compare(step_of(changed), recorded_by("planted") / "plain.rec")
    assert not found.same
    assert is_named(found, planted.ops, planted.module, planted.phase), str(found)


@pytest.mark.parametrize("op", LOWERED)
def test_a_lowered_op_is_named(op, plain, recorded_by):
    found = hmp.compare(plain, recorded_by("planted") / file_of(f"low {op}"))
    assert is_named(found, (LOWERED[op][0],), LOWERED[op][1]), str(found)
    assert (found.first.kind, found.first.runs_in[0]) == ("precision", "float32")


@pytest.mark.parametrize("seed", range(40))
def test_equal_runs_are_the_same(seed, recorded_by, tmp_path):
    record(tmp_path / "a.rec", step_of(seeded(seed)))
    found = hmp.compare(tmp_path / "a.rec", recorded_by("equal") / file_of(f"equal {seed}"))
    assert found.same, str(found)
    assert found.calls > 50
