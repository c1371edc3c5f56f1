"""Every test leaves torch as it found it."""

from __future__ import annotations

import pytest

from habana_mp import hmp


@pytest.fixture(autouse=True)
def _converted_by_none(monkeypatch):
    monkeypatch.delenv("HABANA_MP_LOG", raising=False)
    yield
    hmp.revert()
