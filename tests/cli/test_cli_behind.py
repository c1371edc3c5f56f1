"""Options of a command that are behind its script: passed to the script, with a warning if it does not know them."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from habana_mp.cli import main

ARGPARSE = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--policy')\nparser.parse_args()\n"
FIELD = "import dataclasses\n@dataclasses.dataclass\nclass Arguments:\n    low_dtype: str = 'bf16'\n"
USAGE = '"""Usage: script.py [--policy=P]"""\n'
FLAG = "define_string = print\ndef flags():\n    define_string('policy', None, 'of the robot')\n"
OTHERS = "import torch\nprint(torch.ones(2, device='cpu').shape, 'A'.lower(), {}.values())\n"

# script, arguments of run -> the options that the warning names
BEHIND = {
    "an option": (OTHERS, ["script.py", "--policy", "hmp"], "--policy"),
    "with =": (OTHERS, ["script.py", "--policy=hmp"], "--policy"),
    "some, each once": (OTHERS, ["script.py", "--lower", "+mm", "--edit", "-mm", "--lower", "+bmm"], "--lower, --edit"),
    "a module": (OTHERS, ["-m", "script", "--low-dtype", "fp16"], "--low-dtype"),
    "the script after --": (OTHERS, ["--", "script.py", "--policy", "hmp"], "--policy"),
    "one is known": (ARGPARSE, ["script.py", "--policy", "x"], ""),
    "known as a field": (FIELD, ["script.py", "--low_dtype", "x", "--low-dtype", "x"], ""),
    "known as a usage": (USAGE, ["script.py", "--policy=x"], ""),
    "known as a flag": (FLAG, ["script.py", "--policy", "x"], ""),
    "known to a module beside it": ("import parser_of_it\n", ["script.py", "--policy", "x"], ""),
    "known to a module of a package": ("from pack_of_it import part\n", ["-m", "pack_of_it", "--policy", "x"], ""),
    "a broken module beside it": ("try:\n    import broken\nexcept SyntaxError: pass", ["script.py", "--policy", "x"], "--policy"),
    "of another command": (OTHERS, ["script.py", "--values"], ""),
    "of the script": (OTHERS, ["script.py", "--seed", "3", "--help"], ""),
    "for the script by --": (OTHERS, ["script.py", "--", "--policy", "hmp"], ""),
    "before the script": (OTHERS, ["--policy", "hmp", "script.py", "--seed", "3"], ""),
}  # fmt: skip


@pytest.mark.parametrize("case", BEHIND)
def test_a_warning_names_what_the_script_does_not_know(here, case):
    script, arguments, named = BEHIND[case]
    Path("script.py").write_text(script)
    Path("parser_of_it.py").write_text(ARGPARSE)
    Path("broken.py").write_text("x = = 1")
    Path("pack_of_it").mkdir()
    Path("pack_of_it/__init__.py").touch()
    Path("pack_of_it/__main__.py").write_text(script)
    Path("pack_of_it/part.py").write_text(ARGPARSE)
    name = "script" if "-m" in arguments else "script.py"
    warning = f"Warning: the script gets {named}. Put options of habana-mp before {name}\n" if named else ""
    done = CliRunner().invoke(main, ["run", *arguments])
    assert (done.exit_code, done.stderr) == (0, warning)


@pytest.mark.parametrize(
    ("command", "option"),
    [("report", "--values"), ("report", "--json"), ("find-nonfinite", "--device"), ("compare", "--html")],
)
def test_the_options_are_those_of_the_command(here, command, option):
    Path("script.py").write_text("pass")
    done = CliRunner().invoke(main, [command, "script.py", option, "x"])
    warning = f"Warning: the script gets {option}. Put options of habana-mp before script.py\n"
    assert done.stderr.startswith(warning)
    assert done.stderr.count("Warning") == 1


def test_compare_reads_its_policies_behind_the_script(here):
    Path("script.py").write_text("pass")
    done = CliRunner().invoke(main, ["compare", "script.py", "--policy", "hmp", "--with", "torch-cpu"])
    assert "Warning" not in done.stderr
