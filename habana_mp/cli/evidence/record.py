"""``habana-mp record``: a script whose numbers are kept in a file, for ``habana-mp compare`` and ``hmp.compare``."""

from __future__ import annotations

import contextlib
import importlib
import random

import click
import torch

from habana_mp import hmp
from habana_mp._evidence.recordings.file import SUFFIX
from habana_mp.cli.behind import taken
from habana_mp.cli.console import Problem, user_errors
from habana_mp.cli.parameters import new_file
from habana_mp.cli.run import script_command
from habana_mp.cli.script import Script, ending_of


class _ReadsBehind(click.Command):
    """Reads --output behind the script too, if it is not before it. The script then does not see it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        arguments = [*(ctx.params["arguments"] or ())]
        if ctx.params["output"] is None:
            (option,) = (each for each in self.params if each.name == "output")
            ctx.params["output"] = new_file(ctx, option, taken(arguments, "--output", "a file"))
            ctx.params["arguments"] = tuple(arguments)
        return rest


@click.command(cls=_ReadsBehind, context_settings={"allow_interspersed_args": False})
@click.option(
    "--output",
    callback=new_file,
    metavar="FILE",
    help=f"The recording, whose name ends in {SUFFIX}. Required. %r in the name is the rank.",
)
@script_command
def record(script: Script, output: str | None) -> None:
    """Run a script and record its numbers in a file.

    The file has, for each call of an op, a hash and a sample of its results, and at most 20 MB. A step or two are enough.
    The script begins with the same random numbers of torch, `random` and `numpy.random` each time.

    \b
      habana-mp record --policy none --output a.rec train.py --steps 1
      habana-mp record train.py --steps 1 --output b.rec
      habana-mp compare a.rec b.rec

    After SCRIPT, the command reads --output only if it is not before SCRIPT. The exit code is that of the script. If it is
    not 0, no file is written.
    """
    if output is None:
        raise Problem(f"--output is missing: the file for the recording, such as step{SUFFIX}")
    with user_errors():
        recording = hmp.record(output)
    begin_random_numbers()
    endings: list[SystemExit | None] = []
    try:
        with recording:
            endings.append(ending_of(script))
            if (ending := endings[0]) is not None and ending.code:
                raise ending
    except OSError as error:  # of writing: those of the script have ended it
        raise Problem(f"--output {output}: {error.strerror}") from None
    if endings[0] is not None:
        raise endings[0]


def begin_random_numbers() -> None:
    """The same ones in each process."""
    torch.manual_seed(0)
    random.seed(0)
    with contextlib.suppress(ImportError):
        importlib.import_module("numpy.random").seed(0)
