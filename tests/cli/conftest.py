"""An empty folder for scripts, under a short name."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def here(place_for_scripts) -> Path:
    return place_for_scripts
