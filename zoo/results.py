"""What has run, as lines of JSON: one file for each state of the code, so that a run that was stopped goes on."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Collection, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers

import habana_mp._core as _core
from zoo.cases import Case, Difference, Outcome, Run

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "build" / "zoo"


def path(of: str) -> Path:
    """The file of these cases, this torch, this transformers, the package as it is built and the cases as they are written."""
    state = hashlib.sha256(f"{torch.__version__} {transformers.__version__}".encode())
    parts = [
        *(ROOT / "habana_mp").rglob("*.py"),
        Path(_core.__file__),
        *(ROOT / "lists").rglob("*"),
        *(ROOT / "zoo" / "cases").rglob("*.py"),
    ]
    for part in sorted(part for part in parts if part.is_file()):
        name = part.relative_to(ROOT) if part.is_relative_to(ROOT) else part.name  # an installed core
        state.update(str(name).encode() + b"\0" + part.read_bytes())
    return FOLDER / f"{of}-{state.hexdigest()[:16]}.jsonl"


def read(file: Path) -> dict[str, list[Run]]:
    """The runs of each case by its label."""
    return {entry["case"]: [_run(run) for run in entry["runs"]] for _, entry in _entries(file)}


def forget(file: Path, labels: Collection[str]) -> None:
    """The runs of these cases alone: all of them take hours."""
    file.write_text("".join(line for line, entry in _entries(file) if entry["case"] not in labels))


def _entries(file: Path) -> list[tuple[str, dict[str, Any]]]:
    """Each line and what it holds. A last line that was cut is none."""
    found = []
    for line in file.read_text().splitlines(keepends=True) if file.exists() else ():
        with contextlib.suppress(json.JSONDecodeError):
            found.append((line, json.loads(line)))
    return found


def _run(stored: dict[str, object]) -> Run:
    outcomes, differences = stored.pop("outcomes"), stored.pop("differences")
    return Run(
        outcomes=[Outcome(*outcome) for outcome in outcomes],  # type: ignore[attr-defined]
        differences=[Difference(*difference) for difference in differences],  # type: ignore[attr-defined]
        **stored,  # type: ignore[arg-type]
    )


def line(case: Case, runs: Iterable[Run]) -> str:
    return json.dumps({"case": case.label, "runs": [asdict(run) for run in runs]}) + "\n"
