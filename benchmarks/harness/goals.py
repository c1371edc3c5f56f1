"""benchmarks/goals.md, for contributors: every row that has a goal, with the goal, and whether it is met."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.rows import Row, table

if TYPE_CHECKING:
    from harness.results import Results

HEAD = (
    "# Goals of the benchmarks\n\n"
    "For contributors. Written by `make bench` from `results.json`: every row that has a goal, in the run that its section names. What users read is "
    "in [docs/benchmarks.md](../docs/benchmarks.md).\n"
)


def goals_page(results: Results) -> str:
    """A table of how many are met, then the rows by section; those that miss their goal come first."""
    with_goal = {title: [row for row in each.rows if row.goal is not None] for title, each in results.items()}
    with_goal = {title: rows for title, rows in with_goal.items() if rows}
    counts = [
        [f"[{title}](#{anchor(title)})", str(len(rows)), str(met(rows)), str(len(rows) - met(rows))]
        for title, rows in with_goal.items()
    ]
    everything = [row for rows in with_goal.values() for row in rows]
    total = ["all", str(len(everything)), str(met(everything)), str(len(everything) - met(everything))]
    parts = [HEAD, table(["section", "goals", "met", "missed"], [*counts, total]) + "\n"]
    for title, rows in with_goal.items():
        lines = [
            [row.what, row.shown(), goal_text(row), "met" if row.reached else "**missed**"]
            for row in _missed_first(rows)
        ]
        parts.append(f"## {title}\n\n{results[title].origin}\n\n{table(['what', 'measured', 'goal', ''], lines)}\n")
    return "\n".join(parts)


def met(rows: list[Row]) -> int:
    return sum(row.reached for row in rows)


def goal_text(row: Row) -> str:
    return f"{'≥' if row.at_least else '≤'} {row.goal:g} {row.unit}".strip()


def anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _missed_first(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row.reached)
