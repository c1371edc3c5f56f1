"""A script may put any object at sys.stdout and sys.stderr; what a command writes behind it raises nothing and is not lost (D47)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# What is there, and whether it keeps what is written to it.
STREAMS = {
    "write alone": ("class Stream:\n    def write(self, text): real.write(text)", True),
    "write and what raises": (
        """class Stream:
    def write(self, text): real.write(text)
    def __getattr__(self, name):
        raise (RuntimeError if name in ('flush', 'isatty', 'closed', 'fileno') else AttributeError)(name)""",
        True,
    ),
    "a terminal, as it says": (
        "class Stream:\n    def write(self, text): raise RuntimeError('mine')\n    def isatty(self): return True",
        False,
    ),
    "write raises": ("class Stream:\n    def write(self, text): raise RuntimeError('mine')", False),
    "no stream": ("class Stream: pass", False),
    "none": ("Stream = lambda: None", False),
    "closed": ("import io\ndef Stream():\n    made = io.StringIO()\n    made.close()\n    return made", False),
}
COMMANDS = {
    "report": (["report"], 0, "linear"),
    "report --json -": (["report", "--json", "-"], 0, '"rows"'),
    "a limit": (["report", "--max-casts", "0"], 1, "--max-casts 0: there are 3"),
    "find-nonfinite": (["find-nonfinite"], 0, "finite"),
    "compare": (["compare"], 1, "linear"),
    "tune": (["tune", "--budget", "0.5", "--policy", "hmp"], 0, "error"),
}


# Every stream under one command, and every command under one stream of each kind.
CASES = [(stream, "report") for stream in STREAMS] + [
    (stream, command)
    for stream in ("write and what raises", "write raises")
    for command in COMMANDS
    if command != "report"
]


@pytest.mark.parametrize(("stream", "command"), CASES)
def test_what_a_command_writes_behind_the_script(stream, command, tmp_path):
    (stream, keeps), (command, code, printed) = STREAMS[stream], COMMANDS[command]
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys, torch\nreal = sys.stdout\n{stream}\nsys.stdout, sys.stderr = Stream(), Stream()\n"
        "layer = torch.nn.Linear(4, 4)\ndef step():\n    return layer(torch.ones(2, 4))\nstep()\n"
        # Python itself flushes them at its end.
        "import atexit\natexit.register(lambda: setattr(sys, 'stdout', real) or setattr(sys, 'stderr', sys.__stderr__))\n"
    )
    target = f"{script}:step" if command[0] == "tune" else str(script)
    done = subprocess.run(
        [sys.executable, "-m", "habana_mp", *command, target],
        capture_output=True, text=True, check=False, timeout=120, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert printed in (done.stdout if keeps else done.stdout + done.stderr)
    assert "Traceback" not in done.stderr
