"""``Advice``: what to look at first in a report, and what says so. Pure functions on the plain values of ``CastReport.to_dict``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from habana_mp._report_groups import grouped, pattern
from habana_mp._units import share

_MOST = 5
_WORTH = 0.005  # of the time of the block: less is not worth a line


@dataclass(frozen=True)
class Advice:
    """One line of advice, and what says so."""

    text: str
    evidence: str

    def __str__(self) -> str:
        return f"{self.text}\n    {self.evidence}"


def advice(report: dict[str, Any]) -> list[Advice]:
    """At most five lines, what costs most first; ops that a conversion missed come before all, as they are mistakes."""
    whole = max(report["seconds"], 1e-9)

    def share_of(seconds: float) -> str:
        return f"{share(seconds, whole)} of the time"

    lines: list[tuple[float, Advice]] = []
    for group in grouped(report["missed"], lambda row: row["op"]):
        held = sorted({name for row in group for name in row["held_by"]})
        where = f"held by {', '.join(held[:3])}" if held else f"called at {group[0]['source'] or 'an unknown place'}"
        calls = sum(row["calls"] for row in group)
        said = f"{group[0]['rule']}; {calls} calls; {where}"
        text = (
            f"{group[0]['op']} runs past the conversion: convert before the function is taken, or call it by its module"
        )
        lines.append((float("inf"), Advice(text, said)))
    for chain in report["ping_pong"]:
        first, last, path = chain["ops"][0], chain["ops"][-1], chain["path"]
        text = (
            f"{' -> '.join(step['op'] for step in chain['ops'])}: {' -> '.join(path)}, there and back {chain['count']} times, "
            f"{share_of(chain['seconds'])}"
        )
        reasons = [rule for rule in (_rule(report, first["op"]), _rule(report, last["op"])) if rule]
        lines.append((chain["seconds"], Advice(text, "; ".join(dict.fromkeys(reasons)) + _at(last["module"]))))
    for entry in report["recast"]:
        text = f"{entry['tensor']} is cast to {entry['to']} {entry['times']} times where {entry['needed']} would do, {share_of(entry['seconds'])}"
        wanted = f" in {pattern(entry['modules'])}" if entry["modules"] else ""
        lines.append(
            (
                entry["seconds"],
                Advice(text, f"wanted by {', '.join(entry['ops'])}{wanted}; cast it once by hand (hmp.cast)"),
            )
        )
    for group in grouped((row for row in report["rows"] if row["casts"]), lambda row: (row["op"], row["decision"])):
        seconds = sum(cast["seconds"] + cast["backward"]["seconds"] for row in group for cast in row["casts"])
        count = sum(cast["count"] for row in group for cast in row["casts"])
        way = max((cast for row in group for cast in row["casts"]), key=lambda cast: cast["seconds"])
        text = f"{group[0]['op']}: {count} casts, mostly {way['from']} -> {way['to']}, {share_of(seconds)}"
        lines.append((seconds, Advice(text, f"{group[0]['rule']}" + _at(pattern(row["module"] for row in group)))))
    for group in grouped((row for row in report["rows"] if row["decision"] == "unlisted"), lambda row: row["op"]):
        seconds = sum(row["seconds"] for row in group)
        if seconds >= whole / 20 and any("float32" in row["dtypes"] for row in group):
            calls = sum(row["calls"] for row in group)
            text = f"{group[0]['op']} takes {share_of(seconds)} in float32 and no list names it"
            # Half of it is what a lower precision could save at best.
            lines.append((seconds / 2, Advice(text, f"{calls} calls" + _at(pattern(row["module"] for row in group)))))
    worth = [entry for entry in lines if entry[0] >= _WORTH * whole]
    return [line for _, line in sorted(worth, key=lambda entry: -entry[0])[:_MOST]]


def _rule(report: dict[str, Any], op: str) -> str:
    return next((row["rule"] for row in report["rows"] if row["op"] == op and row["rule"]), "")


def _at(module: str) -> str:
    return f"; in {module}" if module else ""
