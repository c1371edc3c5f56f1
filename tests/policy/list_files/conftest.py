"""List files that a test writes."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def written(tmp_path):
    """A function that writes a list and returns its path."""

    def write(content: str | bytes, name: str = "my.txt") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write
