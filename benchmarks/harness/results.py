"""benchmarks/results.json: the rows of the newest run of each benchmark, from which pages and pictures are made."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from harness.rows import Row

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Section:
    machine: str
    rows: list[Row]
    commit: str = ""  # of runs before pages named theirs: not known

    @property
    def origin(self) -> str:
        """What a section of a page begins with."""
        return f"Machine: {self.machine}.{f' Measured at commit {self.commit}.' if self.commit else ''}"


Results = dict[str, Section]  # by title


def load(path: Path) -> Results:
    if not path.exists():
        return {}
    found = json.loads(path.read_text())
    return {
        title: Section(each["machine"], [Row(**row) for row in each["rows"]], each.get("commit", ""))
        for title, each in found.items()
    }


def save(path: Path, results: Results) -> None:
    """A line for each row, so that a difference between two runs can be read."""
    sections = []
    for title, section in results.items():
        lines = ",\n".join(f"    {json.dumps(_without_defaults(row))}" for row in section.rows)
        commit = f"   {json.dumps('commit')}: {json.dumps(section.commit)},\n" if section.commit else ""
        sections.append(
            f"  {json.dumps(title)}: {{\n   {json.dumps('machine')}: {json.dumps(section.machine)},\n"
            f"{commit}"
            f'   "rows": [\n{lines}\n   ]\n  }}'
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(sections) + "\n}\n")


def _without_defaults(row: Row) -> dict[str, object]:
    """Figures have six digits: more of them are noise, and fewer could change on which side of its goal one lies."""
    kept = {name: value for name, value in asdict(row).items() if value or name in ("what", "measured", "unit")}
    return kept | {"measured": float(f"{row.measured:.6g}")}
