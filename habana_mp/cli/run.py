"""``habana-mp run``: a script converted before it starts. Also what ``report`` shares with it: the options and the policy."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click

from habana_mp._autocast.models_called import on_models_called
from habana_mp._gaudi import importer
from habana_mp._hpu import gaudi_flags
from habana_mp._hpu.mapping import is_real, map_hpu
from habana_mp._hpu.torch_hpu import NAMES
from habana_mp._scope import in_force
from habana_mp._scope.disable_casts import disable_casts
from habana_mp.cli.behind import warn_of_options_behind
from habana_mp.cli.console import Problem, user_errors
from habana_mp.cli.parameters import DEFAULT, NONE, policy_options
from habana_mp.cli.script import Script, constants, open_script, run_script
from habana_mp.hmp import Policy, convert

# Parts of the names of modules that are for Gaudi.
_PACKAGES = {"habana", "habana_dataloader", "habana_frameworks", "lightning_habana"}


def script_command(function: Callable[..., None]) -> Callable[..., None]:
    """The parameters of a command that runs a script: the function gets the script, ready and converted, as ``script``."""

    @click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module, as in python -m.")
    @policy_options(
        ", until the script sets a policy itself or imports Habana's package. "
        "A policy of the command line takes precedence over the arguments of hmp.convert in the script."
    )
    @click.option(
        "--device",
        metavar="TYPE",
        help='The device type that "hpu" and "habana" mean in the script: cpu, cuda, xpu, ... It does not replace a real HPU.',
    )
    @click.argument("script", type=click.Path())
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
    @functools.wraps(function)
    def command(
        *,
        script: str,
        arguments: tuple[str, ...],
        is_module: bool,
        policy: Policy | None,
        device: str | None,
        **options: Any,
    ) -> None:
        with contextlib.ExitStack() as running:
            _prepare(running, policy, device)
            opened = open_script(script, arguments, is_module=is_module)
            if _names_hpu(opened) and not is_real():
                # The script's import of Habana's names, if there is one, raises for a device that is not there.
                with contextlib.suppress(ValueError, RuntimeError):
                    importer.register_device()
                    importer.pass_to_children()
            warn_of_options_behind(opened, arguments, click.get_current_context().command)
            function(script=opened, **options)

    return command


def _prepare(running: contextlib.ExitStack, policy: Policy | None, device: str | None) -> None:
    """The conversion, and what ends with the script."""
    importer.install()
    gaudi_flags.apply_log_masks()
    with user_errors():
        if policy is not None:
            running.enter_context(_names_for_modules(policy))
        if policy is NONE:  # in regions of the script, too
            running.enter_context(disable_casts())
        convert(policy=policy or DEFAULT)
        in_force.cli_policy, in_force.is_cli_default = policy, policy is None
    if device is not None:
        try:
            mapped = map_hpu(device)
        except (ValueError, RuntimeError) as error:
            raise Problem(f"--device: {error}") from None
        if not mapped:
            note = "--device has no effect: the HPU is real here, or another package uses its name"
            click.echo(f"Warning: {note}", err=True)


@contextlib.contextmanager
def _names_for_modules(policy: Policy) -> Iterator[None]:
    """``on_models_called``, whose warning at the end is a line on stderr, as the other warnings of a command are."""
    with contextlib.ExitStack() as models:
        models.enter_context(on_models_called(policy))
        yield
        with user_errors():
            models.close()


def _names_hpu(script: Script) -> bool:
    """Whether a script or its arguments name the device, or the script a package for it: a device that it makes before it imports anything
    of Habana's is to be the right one.
    """
    arguments = (argument for argument in sys.argv[1:] if os.sep not in argument)
    return any(
        text.partition(":")[0] in NAMES or not _PACKAGES.isdisjoint(text.split(".")) for text in constants(script.code)
    ) or any(not {*NAMES}.isdisjoint(re.split("[-_=:]", argument)) for argument in arguments)


@click.command(context_settings={"allow_interspersed_args": False})
@script_command
def run(script: Script) -> None:
    """Run an unmodified script in mixed precision.

    The command converts the ops of torch before the script starts. Everything after SCRIPT belongs to the script. Processes that the
    script spawns are not converted. Under torchrun, each rank is converted:

    \b
      habana-mp run train.py --epochs 3
      habana-mp run --policy hmp-o2 -m my_package.train
      habana-mp run --lower +softmax --edit -mul --low-dtype fp16 train.py
      torchrun --nproc-per-node 2 -m habana_mp run --policy hmp train.py

    HABANA_MP_LOG=casts shows each cast. It may be off, casts or detail, with :FILE after it. The exit code is that of the script.
    """
    run_script(script)
