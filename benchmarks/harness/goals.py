"""benchmarks/goals.md, for contributors: the goals of goals.toml, the rows that meet them, and why the others do not."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from harness.rows import Row, table

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Iterable

    from harness.results import Results

FILE = Path(__file__).parent.parent / "goals.toml"
HEAD = (
    "# Goals of the benchmarks\n\n"
    "For contributors. Written by `make bench` from `goals.toml` and `results.json`: each goal with the reason for its number, and the rows that "
    "miss it with what is known of that, in the run that the section names. What users read is in [docs/benchmarks.md](../docs/benchmarks.md).\n"
)


@dataclass(frozen=True)
class Goal:
    rows: tuple[str, ...]  # patterns of names
    limit: float | str  # "all": of as many as the name of the row says
    at_least: bool
    why: str
    missed: str = ""  # why rows miss it

    def fits(self, row: Row) -> bool:
        return any(fnmatchcase(row.what, pattern) for pattern in self.rows)

    def is_met(self, row: Row) -> bool:
        limit = float(self.limit) if self.limit != "all" else float(re.findall(r", of (\d+)", row.what)[-1])
        return row.measured >= limit if self.at_least else row.measured <= limit

    def shown(self, unit: str) -> str:
        return "all" if self.limit == "all" else f"{'≥' if self.at_least else '≤'} {self.limit:g} {unit}".strip()


def load(path: Path = FILE) -> list[Goal]:
    return [_goal(**each) for each in tomllib.loads(path.read_text())["goals"]]


def _goal(rows: str | list[str], why: str, missed: str = "", **limit: float | str) -> Goal:
    (kind,) = limit
    return Goal((rows,) if isinstance(rows, str) else tuple(rows), limit[kind], kind == "at_least", why, missed)


def by_goal(rows: Iterable[Row], goals: list[Goal]) -> dict[Goal, list[Row]]:
    """The rows that have a goal, by the first that fits them."""
    found: dict[Goal, list[Row]] = {}
    for row in rows:
        goal = next((goal for goal in goals if goal.fits(row)), None)
        if goal is not None:
            found.setdefault(goal, []).append(row)
    return found


def goals_page(results: Results, goals: list[Goal]) -> str:
    """How many are met, then by section the goals, and the rows that miss theirs."""
    sections = {title: by_goal(section.rows, goals) for title, section in results.items()}
    sections = {title: found for title, found in sections.items() if found}
    counts = {title: _counts(found) for title, found in sections.items()}
    lines = [[f"[{title}](#{anchor(title)})", *map(str, each)] for title, each in counts.items()]
    total = ["all", *(str(sum(column)) for column in zip(*counts.values(), strict=True))]
    parts = [HEAD, table(["section", "rows with a goal", "met", "missed"], [*lines, total]) + "\n"]
    for title, found in sections.items():
        parts.append(f"## {title}\n\n{results[title].origin}\n\n{_goals(found)}\n")
        if counts[title][-1]:
            parts.append(f"{_missed(found)}\n")
    return "\n".join(parts)


def _counts(found: dict[Goal, list[Row]]) -> tuple[int, int, int]:
    met = [goal.is_met(row) for goal, rows in found.items() for row in rows]
    return len(met), sum(met), len(met) - sum(met)


def _goals(found: dict[Goal, list[Row]]) -> str:
    lines = [
        [
            "<br>".join(f"`{pattern}`" for pattern in goal.rows),
            goal.shown(rows[0].unit),
            f"{sum(map(goal.is_met, rows))} of {len(rows)}",
            goal.why,
        ]
        for goal, rows in found.items()
    ]
    return table(["rows", "goal", "met", ""], lines)


def _missed(found: dict[Goal, list[Row]]) -> str:
    lines = [
        [row.what, row.shown(), goal.shown(row.unit), goal.missed]
        for goal, rows in found.items()
        for row in rows
        if not goal.is_met(row)
    ]
    return table(["missed", "measured", "goal", ""], lines)


def anchor(title: str) -> str:
    return title.lower().replace(" ", "-")
