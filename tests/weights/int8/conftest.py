"""Both front ends, and a cache that has nothing of another test in it."""

import pytest

from habana_mp import hmp


@pytest.fixture(params=["convert", "autocast"])
def front_end(request):
    return request.param


@pytest.fixture(autouse=True)
def empty_cache():
    hmp.cache.clear()
    yield
    hmp.cache.clear()
