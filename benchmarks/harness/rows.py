"""What a benchmark measures, a row for each figure, and the tables that a user reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    what: str
    measured: float
    unit: str
    beside: str = ""

    def shown(self) -> str:
        return f"{self.measured:.3g} {self.unit}".strip()


@dataclass(frozen=True)
class Ratio:
    top: str
    bottom: str


@dataclass(frozen=True)
class Comparison:
    """What the variants take for one thing, and the ratios that say how they stand."""

    what: str
    unit: str
    taken: dict[str, float]
    ratios: list[Ratio]

    def ratio_rows(self) -> list[Row]:
        return [
            Row(f"{self.what}: {ratio.top} / {ratio.bottom}", self.taken[ratio.top] / self.taken[ratio.bottom], "x")
            for ratio in self.ratios
        ]

    def rows(self) -> list[Row]:
        return [
            *self.ratio_rows(),
            *(Row(f"{self.what}: {name}", value, self.unit) for name, value in self.taken.items()),
        ]


def rows_of(groups: dict[str, list[Comparison]]) -> list[Row]:
    """Of comparisons by the name of their group, which begins the name of each row."""
    return [
        Row(f"{group}, {row.what}", row.measured, row.unit, row.beside)
        for group, comparisons in groups.items()
        for one in comparisons
        for row in one.rows()
    ]


def elements(count: int) -> str:
    for factor, unit in ((1 << 20, " Mi"), (1 << 10, " Ki")):
        if count >= factor:
            return f"{count // factor}{unit}"
    return str(count)


def table(header: list[str], lines: list[list[str]]) -> str:
    """The first column is text, the others are figures; one without a name is text again."""
    marks = ["---", *("---:" if name else "---" for name in header[1:])]
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, marks, *lines])


def table_of(rows: list[Row]) -> str:
    if not any(row.beside for row in rows):
        return table(["what", "measured"], [[row.what, row.shown()] for row in rows])
    return table(["what", "measured", ""], [[row.what, row.shown(), row.beside] for row in rows])


def table_of_comparisons(comparisons: list[Comparison]) -> str:
    """Comparisons of the same variants and ratios."""
    first = comparisons[0]
    header = [
        *(f"{name}, {first.unit}" if first.unit else name for name in first.taken),
        *(f"{one.top} / {one.bottom}" for one in first.ratios),
    ]
    lines = [
        [
            one.what,
            *(f"{value:.3g}" if value < 1000 else f"{value:.0f}" for value in one.taken.values()),
            *(f"{row.measured:.2f}" for row in one.ratio_rows()),
        ]
        for one in comparisons
    ]
    return table(["", *header], lines)
