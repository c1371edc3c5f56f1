"""``habana-mp run``: a script converted before it starts. Also what ``report`` shares with it: the options and the policy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from habana_mp import Policy, _state, convert
from habana_mp.cli.console import told
from habana_mp.cli.parameters import PolicyParameter
from habana_mp.cli.script import Script, imports, open_script, run_script

_LIST_FILE = click.Path(exists=True, dir_okay=False)


def script_command(function: Callable[..., None]) -> Callable[..., None]:
    """The parameters of a command that runs a script: the function gets the script, ready and converted, as ``script``."""

    @click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module, as for python -m.")
    @click.option(
        "--policy",
        type=PolicyParameter(),
        metavar="P",
        help="A preset, a folder, a gaudi_config.json or the text of a policy. It wins over what the script asks hmp.convert for. "
        "Default: hmp, until the script sets a policy itself.",
    )
    @click.option(
        "--lower",
        type=_LIST_FILE,
        metavar="FILE",
        help="A list file for the lower precision, or edits (+op, -op) of it.",
    )
    @click.option("--fp32", type=_LIST_FILE, metavar="FILE", help="The same for float32.")
    @click.argument("script", type=click.Path())
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
    @functools.wraps(function)
    def command(
        *,
        script: str,
        arguments: tuple[str, ...],
        is_module: bool,
        policy: Policy | None,
        lower: str | None,
        fp32: str | None,
        **options: Any,
    ) -> None:
        with told():
            if lower or fp32:
                policy = Policy.from_files(lower, fp32, base=policy or "hmp")
            convert(policy=policy)
            _state.held, _state.stands_in = policy, policy is None
        opened = open_script(script, arguments, is_module=is_module)
        if "habana_frameworks" in imports(opened.code):
            from habana_mp import gaudi  # noqa: F401 - its import is what makes the names importable
        function(script=opened, **options)

    return command


@click.command(context_settings={"allow_interspersed_args": False})
@script_command
def run(script: Script) -> None:
    """Run an unmodified script in mixed precision.

    The ops of torch are converted before the script starts; what stands behind SCRIPT belongs to the script. Processes that it spawns
    are not converted; under torchrun each rank is:

    \b
      habana-mp run train.py --epochs 3
      habana-mp run --policy hmp-o2 -m my_package.train
      torchrun --nproc-per-node 2 -m habana_mp run --policy hmp train.py

    HABANA_MP_LOG=casts shows each cast (off, casts, detail, with :FILE behind it). The exit code is the script's.
    """
    run_script(script)
