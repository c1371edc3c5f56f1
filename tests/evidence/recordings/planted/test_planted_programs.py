"""Differences planted in another process, in a program that differs from that of run a besides.

The other process may have another version of torch: the Python in RECORDING_PYTHON records then. `make matrix` sets it.
"""

from __future__ import annotations

import os
import sys

import pytest

from habana_mp import hmp
from tests.evidence.recordings.planted.child import file_of
from tests.evidence.recordings.planted.plants import CASES, PLANTS, PROGRAMS, first, second
from tests.evidence.recordings.programs import record

RTOL = 1e-4
PYTHON = os.environ.get("RECORDING_PYTHON", sys.executable)


@pytest.mark.parametrize("program", PROGRAMS)
def test_equal_runs_are_the_same(program, recorded_by, here):
    record("a.rec", first(program))
    folder = recorded_by("programs", PYTHON)
    for found in (
        hmp.compare("a.rec", folder / file_of(f"b {program}"), rtol=RTOL),
        hmp.compare(second(program), folder / file_of(f"a {program}"), rtol=RTOL),
    ):
        assert found.same, str(found)


@pytest.mark.parametrize(("program", "plant"), CASES)
def test_a_planted_difference_is_named(program, plant, recorded_by, here):
    record("a.rec", first(program))
    folder = recorded_by("programs", PYTHON)
    expected = PLANTS[plant]
    for found in (
        hmp.compare("a.rec", folder / file_of(f"{program} {plant}"), rtol=RTOL),
        hmp.compare(second(program, plant), folder / file_of(f"a {program}"), rtol=RTOL),
    ):
        assert not found.same
        path = found.first.module.partition(": ")[2]
        assert (path, found.first.op in expected.ops) == (expected.module, True), str(found)
