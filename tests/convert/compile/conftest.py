"""Every test here starts and ends with nothing compiled."""

import pytest


@pytest.fixture(autouse=True)
def _fresh(fresh_dynamo):
    """See there."""
