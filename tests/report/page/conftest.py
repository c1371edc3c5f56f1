"""Opens pages of reports; each test fails for what a page complains of."""

from __future__ import annotations

import pytest
from page_reader import Reader
from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def one_reader(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    return Reader(browser, tmp_path_factory.mktemp("page"))


@pytest.fixture
def reader(one_reader: Reader):
    yield one_reader
    complaints, one_reader.complaints = one_reader.complaints, []
    assert complaints == []
