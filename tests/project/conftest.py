"""The documentation, built once, and opened without a network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).parent.parent.parent
HOST = "docs.invalid"


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def opened(site, browser):
    """Opens pages of a browser without a network, at http://docs.invalid/ or from disk, which have the files of the site alone."""
    contexts, problems = [], []

    def answer(route):
        url = urlsplit(route.request.url)
        if url.scheme == "file" and Path(url.path).is_relative_to(site):
            route.continue_()
        elif url.hostname == HOST and (site / url.path.lstrip("/")).is_file():
            route.fulfill(path=site / url.path.lstrip("/"))
        else:
            problems.append(f"asks for {route.request.url}")
            route.abort()

    def page(**options):
        contexts.append(browser.new_context(offline=True, **options))
        contexts[-1].set_default_timeout(30_000)
        contexts[-1].route("**", answer)
        made = contexts[-1].new_page()
        made.problems = problems
        made.on("console", lambda said: problems.append(said.text) if said.type in ("error", "warning") else None)
        made.on("pageerror", lambda error: problems.append(str(error)))
        return made

    yield page
    for context in contexts:
        context.close()
