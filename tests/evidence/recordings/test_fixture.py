"""The fixture assert_same of the pytest plugin, in a pytest of its own."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

TESTS = """
import os
import torch
from habana_mp import hmp

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Softmax(-1))
x = torch.linspace(-1, 1, 8).view(2, 4) * float(os.environ.get("SCALE", 1))

def test_net(assert_same):
    assert_same(lambda: net(x), "net", rtol=1e-5)

def test_net_trained(assert_same):
    assert_same(lambda: net(x).square().sum().backward(), "trained/net")
"""


@pytest.fixture
def project(pytester):
    pytester.makeconftest('pytest_plugins = ["habana_mp.pytest_plugin"]')
    pytester.makepyfile(test_net=TESTS)
    return pytester


def test_recordings_are_written_and_compared(project, monkeypatch):
    missing = project.runpytest_subprocess()
    missing.assert_outcomes(failed=2)
    missing.stdout.fnmatch_lines("*recordings/net.rec does not exist. pytest --hmp-record writes it*")
    project.runpytest_subprocess("--hmp-record").assert_outcomes(passed=2)
    assert sorted(each.name for each in (project.path / "recordings").rglob("*.rec")) == ["net.rec", "net.rec"]
    project.runpytest_subprocess().assert_outcomes(passed=2)
    monkeypatch.setenv("SCALE", "1.000001")
    close = project.runpytest_subprocess()
    close.assert_outcomes(passed=1, failed=1)
    close.stdout.fnmatch_lines("*first difference*")
    monkeypatch.setenv("SCALE", "1.1")
    project.runpytest_subprocess().assert_outcomes(failed=2)
