"""docs/command-line.md is true: its sessions give what they show.

"..." stands for anything, on a line of its own for any lines. Times, shares, the blanks that they shift and the version of torch do not count.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from habana_mp import hmp
from habana_mp._scope import in_force
from habana_mp.cli import main

PAGE = Path(__file__).parent.parent.parent / "docs" / "command-line.md"
BLOCKS = re.findall(r"^```console\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
STEPS = [
    (command, shown)
    for block in BLOCKS
    for command, _, shown in (part.partition("\n") for part in re.split(r"^\$ ", block, flags=re.MULTILINE) if part)
]


def normal(text: str) -> str:
    text = re.sub(r"(torch) \d+\.\d+\.\d+(\+\w+)?", r"\1 N", text)
    return "".join(
        " ".join(re.sub(r"<?\d[\d.,]* (s|ms|µs|ns|%)", "N", line).split()) + "\n" for line in text.splitlines()
    )


def pattern(shown: str) -> str:
    lines = [
        r"(.*\n)*?" if line.strip() == "..." else re.escape(line).replace(r"\.\.\.", ".*") + r"\n"
        for line in shown.splitlines()
    ]
    return "".join(lines)


def output(arguments: list[str]) -> str:
    done = CliRunner().invoke(main, arguments)
    hmp.revert()
    in_force.cli_policy = None
    return done.output


def test_the_sessions(place_for_scripts, monkeypatch):
    for variable in ("HABANA_MP_CACHE_BYTES", "HABANA_MP_CAST_VARIANT", "LOWER_LIST", "FP32_LIST"):
        monkeypatch.delenv(variable, raising=False)
    ran = 0
    for command, shown in STEPS:
        program, *arguments = shlex.split(command)
        if program == "cat":
            Path(*arguments).write_text(shown)
            continue
        assert program == "habana-mp"
        # The rows of a report are in the order of times, which a busy machine changes.
        for _ in range(3 if arguments[0] == "report" else 1):
            printed = output(arguments)
            if re.fullmatch(pattern(normal(shown)), normal(printed)):
                break
        else:
            pytest.fail(f"{command}\n{printed}")
        ran += 1
    assert ran >= 8
