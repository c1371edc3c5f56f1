"""The command line ``habana-mp``. Private to the package: what it can do, ``habana_mp`` can do.

Each command has a file of its own, which is imported when the command is called.
"""

from __future__ import annotations

import importlib

import click

# Command -> module of this folder that holds it under the command's name.
_COMMANDS = {
    "run": "run",
    "report": "report",
    "find-nonfinite": "evidence.find_nonfinite",
    "record": "evidence.record",
    "compare": "evidence.compare",
    "tune": "evidence.tune",
    "diff": "diff",
    "explain": "explain",
    "lists": "lists",
    "doctor": "doctor",
}

_EPILOG = """\b
Exit codes:
  0    no problem
  1    find-nonfinite, compare, diff, lists check, lists diff or doctor found
       something, a limit of report is exceeded, or the error of tune on the
       data of --check is above the budget
  2    an error in the command line or in a file that it names
  130  interrupted
run, report and record end with the exit code of the script.

\b
Completion of commands, presets and op names, in bash, zsh and fish:
  eval "$(_HABANA_MP_COMPLETE=bash_source habana-mp)"
  eval "$(_HABANA_MP_COMPLETE=zsh_source habana-mp)"
  _HABANA_MP_COMPLETE=fish_source habana-mp | source
"""


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return [*_COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"{__name__}.{_COMMANDS[cmd_name]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command


@click.group(cls=_Commands, epilog=_EPILOG)
@click.version_option(package_name="habana_mp", prog_name="habana-mp")
def main() -> None:
    """Mixed precision for PyTorch by plain text lists of op names: run scripts with it, see its casts, read and edit its lists."""
