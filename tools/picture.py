"""Writes the picture of a report's page in the documentation, by the example that the page beside it names: `make picture`.

The file has the commit that it was made at, for `make release-check`: a picture that looks as before is another file.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image, PngImagePlugin
from playwright.sync_api import sync_playwright

from tools.release_check import commit_now

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "report.png"
WIDTH, HEIGHT = 1180, 600  # down to the advice


def main() -> None:
    commit = commit_now()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = Path(folder, "page.html")
        subprocess.run([sys.executable, ROOT / "examples" / "rotary.py", page], check=True)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        shown = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        shown.goto(page.as_uri())
        shown.screenshot(path=PICTURE)
        browser.close()
    found = PngImagePlugin.PngInfo()
    found.add_text("Comment", f"Made at commit {commit}.")
    with Image.open(PICTURE) as image:
        image.save(PICTURE, pnginfo=found)


if __name__ == "__main__":
    main()
