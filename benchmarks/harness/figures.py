"""Figures in the sentences of other pages, by benchmarks/figures.toml: they follow the rows as the tables do."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from harness.rows import Row

FILE = Path(__file__).parent.parent / "figures.toml"


@dataclass(frozen=True)
class Figures:
    """What the rows of a pattern measured."""

    least: float
    most: float

    def __format__(self, how: str) -> str:
        if self.least != self.most:
            raise ValueError("several rows have this name: write {0.least} or {0.most}")
        return format(self.least, how)


@dataclass(frozen=True)
class Sentence:
    """The text of a page with a field for each figure, in the form of str.format: ``{0:.2f}`` is the row of the first pattern."""

    page: str
    text: str
    rows: tuple[str, ...]

    def written(self, page: str, rows: list[Row]) -> str:
        """The page with the figures of these rows; lines may break anywhere. Raises ValueError if it does not have the sentence once, or a pattern has no row."""
        figures = [self._figures(pattern, rows) for pattern in self.rows]
        parts = [*Formatter().parse(self.text)]
        fields = [f"{{{name}:{how}}}".format(*figures) for _, name, how, _ in parts if name is not None]
        pattern = "".join(
            re.sub(r"(\\?\s)+", r"\\s+", re.escape(literal)) + r"(\d[\d.]*\d|\d)" * (name is not None)
            for literal, name, _, _ in parts
        )
        found = [*re.finditer(pattern, page)]
        if len(found) != 1:
            raise ValueError(f"{self.page} has this {len(found)} times, not once: {self.text}")
        for number in range(len(fields), 0, -1):
            first, last = found[0].span(number)
            page = page[:first] + fields[number - 1] + page[last:]
        return page

    def is_measured(self, rows: list[Row]) -> bool:
        """Without the other packages some rows are not."""
        return all(any(fnmatchcase(row.what, pattern) for row in rows) for pattern in self.rows)

    def _figures(self, pattern: str, rows: list[Row]) -> Figures:
        measured = [row.measured for row in rows if fnmatchcase(row.what, pattern)]
        if not measured:
            raise ValueError(f"{self.page}: no row is named {pattern!r}")
        return Figures(min(measured), max(measured))


def load(path: Path = FILE) -> list[Sentence]:
    return [
        Sentence(each["page"], each["text"], tuple(each["rows"]))
        for each in tomllib.loads(path.read_text())["sentences"]
    ]


def write(root: Path, rows: list[Row], sentences: list[Sentence]) -> None:
    """A folder for a trial run has no such pages."""
    for each in sentences:
        page = root / each.page
        if page.exists() and each.is_measured(rows):
            page.write_text(each.written(page.read_text(), rows))
