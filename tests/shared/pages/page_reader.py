"""Opens the page of a report in a browser, and reads its table of ops."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Browser, ConsoleMessage, Page

from habana_mp._report.form import report_of
from habana_mp._report.shown.page import page


class Reader:
    """Opens reports and notes what a page does that it must not."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self._browser = browser
        self._file = folder / "report.html"
        self._page = self._opened()
        self.complaints: list[str] = []

    def open(self, report: dict, **context) -> Page:
        return self.open_text(page(report_of(report)), **context)

    def open_text(self, text: str, **context) -> Page:
        self._file.write_text(text, encoding="utf-8")
        opened = self._opened(**context) if context else self._page
        opened.goto(self._file.as_uri())
        return opened

    def _opened(self, **context) -> Page:
        opened = self._browser.new_context(offline=True, viewport={"width": 1280, "height": 900}, **context).new_page()
        opened.set_default_timeout(30_000)
        opened.on("console", self._console)
        opened.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        opened.on("request", lambda request: self._requested(request.url))
        return opened

    def _console(self, message: ConsoleMessage) -> None:
        self.complaints.append(f"console: {message.text}")

    def _requested(self, url: str) -> None:
        # The page contains its icon, and the text of the frame contains the page.
        if url != self._file.as_uri() and not url.startswith(("data:", "about:srcdoc")):
            self.complaints.append(f"request: {url}")


def ops(opened: Page) -> list[str]:
    return opened.locator("#ops tr.op .open").all_inner_texts()


def cells(opened: Page, row: int) -> list[str]:
    return [text.strip() for text in opened.locator("#ops tbody tr").nth(row).locator("th, td").all_inner_texts()]
