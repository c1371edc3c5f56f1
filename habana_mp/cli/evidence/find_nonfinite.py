"""``habana-mp find-nonfinite``: a script run inside ``hmp.find_nonfinite``, and what it found."""

from __future__ import annotations

import click

from habana_mp import hmp
from habana_mp._show.stream import say
from habana_mp.cli.run import script_command
from habana_mp.cli.script import Script, ending_of

_ALL_FINITE = (
    "All that the script trained, returned or printed is finite.\n"
    "habana-mp report --values shows the ops that lost numbers on the way (NaN or infinity)."
)
_ENDED_EARLY = "The script failed. Until then, all that it trained, returned or printed was finite."


@click.command(context_settings={"allow_interspersed_args": False})
@script_command
def find_nonfinite(script: Script) -> None:
    """Run a script and name the first op that makes a NaN or infinity.

    The script runs as with `habana-mp run`, but takes longer. A step or two are enough. The command prints on
    stderr the op, its arguments, the line of the list that lowered it, and the edit that avoids the NaN. It does not report masks of -inf.

    \b
      habana-mp find-nonfinite train.py --steps 1
      habana-mp find-nonfinite --policy torch-cpu --low-dtype fp16 train.py

    The exit code is 1 if there is such an op, else that of the script, which is also 1 if the script raises.
    """
    endings: list[SystemExit | None] = []
    found = hmp.find_nonfinite(lambda: endings.append(ending_of(script)))
    if found is not None:
        say(str(found), err=True)
        raise SystemExit(1)
    ending = endings[0]
    say(_ENDED_EARLY if ending and ending.code else _ALL_FINITE, err=True)
    if ending:
        raise ending
