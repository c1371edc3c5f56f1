"""``habana-mp compare``: a script run under two policies, and where its numbers differ."""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import random
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import click

from habana_mp._autocast.models_called import on_models_called
from habana_mp._evidence.compare import compared_with, diff_of, recorded
from habana_mp._scope import in_force
from habana_mp._scope.disable_casts import disable_casts
from habana_mp._show.stream import flush, say
from habana_mp.cli.console import Problem
from habana_mp.cli.output import html_option, json_option, write_files
from habana_mp.cli.parameters import PolicyParameter
from habana_mp.cli.run import script_command
from habana_mp.cli.script import Script, ending_of
from habana_mp.hmp import Policy, convert

_NONE = Policy.from_ops(name="none")


class _OtherPolicy(PolicyParameter):
    """A policy, or "none": no casts."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Policy:
        return _NONE if value == "none" else super().convert(value, param, ctx)


class _ReadsBehind(click.Command):
    """Reads --policy and --with behind the script too, if --with is there and not before it. The script then does not see them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        arguments = [*(ctx.params["arguments"] or ())]
        if ctx.params["other"] is None and "--with" in arguments:
            ctx.params["other"] = _taken(arguments, "--with")
            ctx.params["policy"] = _taken(arguments, "--policy") or ctx.params["policy"]
            ctx.params["arguments"] = tuple(arguments)
        return rest


def _taken(arguments: list[str], option: str) -> Policy | None:
    if option not in arguments:
        return None
    place = arguments.index(option)
    if place + 1 == len(arguments):
        raise Problem(f"{option} takes a policy")
    _, named = arguments[place : place + 2]
    del arguments[place : place + 2]
    return _OtherPolicy().convert(named, None, None)


@click.command(cls=_ReadsBehind, context_settings={"allow_interspersed_args": False})
@click.option(
    "--with",
    "other",
    type=_OtherPolicy(),
    metavar="P",
    help="The policy to compare with, in the form of --policy. The default, none, is plain PyTorch without casts, also in regions of "
    "hmp.autocast on the main thread; those of torch.autocast cast.",
)
@html_option
@json_option
@script_command
def compare(script: Script, other: Policy | None, html: str | None, json_file: str | None) -> None:
    """Run a script under two policies and print how the numbers differ.

    Run a has the policy of --with, and run b that of --policy. Each runs in its own process, from the same random numbers. A few steps
    are enough. The command prints on stderr the first op that differs, the op that makes most of the difference, and a table.

    \b
      habana-mp compare train.py --steps 1
      habana-mp compare --policy hmp --with torch-cpu train.py --steps 1
      habana-mp compare train.py --steps 1 --policy hmp --with torch-cpu

    After SCRIPT, the command reads --policy and --with only if --with is there and not before SCRIPT.

    The exit code is 1 if the runs differ and 0 if they do not. If the script fails, it is that of the script.
    """
    other = other or _NONE
    endings: list[SystemExit | None] = []
    with tempfile.TemporaryDirectory() as folder:
        first = _recorded_by_child(script, other, Path(folder) / "a")
        runs = compared_with(first, lambda: endings.append(ending_of(script)), other_process=True)
    # Without --policy, the script may have replaced the default or ended it.
    own = in_force.policy.name if in_force.policy else "the script's"
    found = runs.comparison((other.name, own), diff_of(None if other is _NONE else other, in_force.policy))
    flush(sys.stdout)
    say(f"\n{found}", err=True)
    write_files(found, html, json_file)
    if (ending := endings[0]) is not None and ending.code:
        raise ending
    if not found.same:
        raise SystemExit(1)


def _recorded_by_child(script: Script, policy: Policy, path: Path) -> Any:
    """Run a: in a child, which leaves what it recorded in a file. Nothing of the script has run in this process by then."""
    if not hasattr(os, "fork"):
        raise Problem("this system cannot fork a process for the second run")
    flush(sys.stdout, sys.stderr)
    random_numbers = random.getstate()  # a child begins with others
    with contextlib.suppress(ImportError):
        importlib.import_module("numpy.random")  # which draws its seed when it is imported
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: what made some by now has ended them
        child = os.fork()
    if child == 0:
        random.setstate(random_numbers)
        _end_child(script, policy, path)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code:
        say(f"Run a, under {policy.name}, ended with {code}: nothing is compared.", err=True)
        raise SystemExit(code if code > 0 else 128 - code)
    with path.open("rb") as file:
        return pickle.load(file)  # noqa: S301 - of our child


def _end_child(script: Script, policy: Policy, path: Path) -> None:
    code: Any = 1
    try:
        in_force.cli_policy, in_force.is_cli_default = policy, False
        convert(policy=policy)
        endings: list[SystemExit | None] = []
        # Those of the script's own regions, too.
        casts = disable_casts() if policy is _NONE else contextlib.nullcontext()
        with on_models_called(policy), casts:  # in place of those of run b
            first = recorded(lambda: endings.append(ending_of(script)))
        code = endings[0].code if endings[0] else 0
        if isinstance(code, str):
            say(code, err=True)
        with path.open("wb") as file:
            pickle.dump(first, file)
    except BaseException as error:  # noqa: BLE001 - the process ends here
        say(f"run a: {error!r}", err=True)
    finally:
        flush(sys.stdout, sys.stderr)
        os._exit(code if isinstance(code, int) else int(code is not None))
