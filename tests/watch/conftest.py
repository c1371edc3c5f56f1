"""A test that opens the log, and leaves none open."""

from __future__ import annotations

import pytest

from habana_mp._watch import log


@pytest.fixture
def log_is_off_around(monkeypatch):
    monkeypatch.delenv("HABANA_MP_LOG", raising=False)
    yield
    log.close_log()
