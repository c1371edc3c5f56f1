"""Every test leaves torch as it found it: each home holds its original again, and casts are on."""

from __future__ import annotations

import os
import shutil
import sys

import pytest
import torch
from namespaces import snapshot

import habana_mp._core as _core
from habana_mp import _weights, hmp
from habana_mp._hpu.mapping import unmap_hpu
from habana_mp._policy.homes import homes
from habana_mp._scope import in_force

# What tests count is not to depend on a measurement. Those of the measurement say so.
os.environ["HABANA_MP_PACKED_WEIGHTS"] = "always"

_ORIGINALS = [(home, home.function()) for home in homes()]


@pytest.fixture(autouse=True)
def _converted_by_none(monkeypatch):
    # What imports Habana's names sets them, for the processes that it starts. Set first, so that they are gone at the end too.
    for variable in ("HABANA_MP_LOG", "PYTHONPATH", "HABANA_MP_DEVICE"):
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    yield
    hmp.revert()
    unmap_hpu()  # a script for Gaudi maps it
    _weights.close_cache()  # regions of autocast leave it open
    off = _core.casts_off()
    _core.set_casts_off(False)
    assert not [home.label for home, original in _ORIGINALS if getattr(home.owner, home.attribute) is not original]
    assert not off


@pytest.fixture
def empty_cache():
    """The cache of weights with nothing in it, and no counts from before."""
    torch.manual_seed(0)
    hmp.cache.clear()


@pytest.fixture
def autocast_as_it_was():
    """The test leaves torch.autocast off, with its cache on and at no depth."""
    yield
    assert not torch._C._is_any_autocast_enabled()
    assert torch.is_autocast_cache_enabled()
    assert torch.autocast_increment_nesting() == 1
    torch.autocast_decrement_nesting()


@pytest.fixture
def pristine():
    """What the namespaces of torch hold before the test converts."""
    return snapshot()


@pytest.fixture
def place_for_scripts(tmp_path, monkeypatch):
    """An empty folder that is the current one. What the command line changes in this process to run a script there is undone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr(in_force, "cli_policy", None)
    monkeypatch.setattr(in_force, "is_cli_default", False)
    return tmp_path


@pytest.fixture(scope="module")
def browser():
    """Chromium, one for the tests of a file."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=30_000)  # as for actions: machines may be busy

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield browser
        browser.close()
