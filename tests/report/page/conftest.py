"""One browser for the tests of a file; each test fails for what a page complains of."""

from __future__ import annotations

import shutil

import pytest
from page_reader import Reader
from playwright.sync_api import Browser, sync_playwright


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def one_reader(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    return Reader(browser, tmp_path_factory.mktemp("page"))


@pytest.fixture
def reader(one_reader: Reader):
    yield one_reader
    complaints, one_reader.complaints = one_reader.complaints, []
    assert complaints == []
