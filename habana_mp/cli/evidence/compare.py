"""``habana-mp compare``: a script under two policies, beside a recording, or two recordings, and where the numbers differ."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from habana_mp import hmp
from habana_mp._evidence.compare import beside, compared_with, diff_of
from habana_mp._evidence.comparison import Comparison
from habana_mp._evidence.recordings.about import recorded_policy
from habana_mp._evidence.recordings.file import SUFFIX, Kept, is_recording, load
from habana_mp._evidence.recordings.terms import Terms
from habana_mp._scope import in_force
from habana_mp._show.stream import flush, say
from habana_mp.cli.behind import taken
from habana_mp.cli.console import Problem, user_errors
from habana_mp.cli.evidence.record import begin_random_numbers
from habana_mp.cli.output import html_option, json_option, write_files
from habana_mp.cli.parameters import NONE, PolicyParameter
from habana_mp.cli.run import script_command
from habana_mp.cli.script import Script, ending_of


class _FirstRun(PolicyParameter):
    """A policy or a recording. Gives its name, which the process of run a reads, too."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # type: ignore[override]
        if not is_recording(value):
            super().convert(value, param, ctx)
        return str(value)


class _Renamed(click.ParamType):  # type: ignore[type-arg, unused-ignore] # click 8.1 has no type arguments
    name = "module"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        old, equals, new = value.partition("=")
        if not equals:
            self.fail(f"{value!r} is not OLD=NEW, the path of a module in run a and in run b", param, ctx)
        return old, new


class _Compare(click.Command):
    """Reads --policy and --with behind the script too, if --with is there and not before it. The script then does not see them.

    In place of a script and its arguments there may be two recordings.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        arguments = [*(ctx.params["arguments"] or ())]
        if ctx.params["other"] is None and "--with" in arguments:
            ctx.params["other"] = _FirstRun().convert(taken(arguments, "--with", "a policy or a recording"), None, None)
            policy = taken(arguments, "--policy", "a policy")
            if policy is not None:
                ctx.params["policy"] = PolicyParameter().convert(policy, None, None)
            ctx.params["arguments"] = tuple(arguments)
        return rest

    def invoke(self, ctx: click.Context) -> Any:
        given = ctx.params
        if not is_recording(given["script"]):
            return super().invoke(ctx)
        if given["other"] is not None or len(given["arguments"]) != 1 or not is_recording(given["arguments"][0]):
            raise Problem(
                f"{given['script']}: give a second recording behind it, which ends in {SUFFIX}, and nothing else"
            )
        with user_errors():
            found = hmp.compare(
                given["script"], given["arguments"][0], modules=dict(given["modules"]), rtol=given["rtol"]
            )
        _show(found, given["html"], given["json_file"])
        return None


@click.command(cls=_Compare, context_settings={"allow_interspersed_args": False})
@click.option(
    "--with",
    "other",
    type=_FirstRun(),
    metavar="P|FILE.rec",
    help="The policy to compare with, in the form of --policy, or a recording. The default, none, is plain PyTorch without casts, also "
    "in regions of hmp.autocast on the main thread; those of torch.autocast cast.",
)
@click.option(
    "--rtol",
    type=float,
    default=0.0,
    metavar="R",
    help="Numbers that differ by at most R, relative to their size, are the same.",
)
@click.option(
    "--module",
    "modules",
    type=_Renamed(),
    multiple=True,
    metavar="OLD=NEW",
    help="Run b has the module OLD of run a by the name NEW; * matches one name of a path. Repeatable.",
)
@html_option
@json_option
@script_command
def compare(
    *,
    script: Script,
    other: str | None,
    rtol: float,
    modules: tuple[tuple[str, str], ...],
    html: str | None,
    json_file: str | None,
) -> None:
    """Run a script under two policies and print how the numbers differ, or compare two recordings.

    Run a has the policy of --with, and run b that of --policy. Each runs in its own process, from the same random numbers. A few steps
    are enough. The command prints on stderr the first op that differs, the op that makes most of the difference, and a table.
    With a recording of `habana-mp record` or `hmp.record` as --with, run a is the recorded one. With two recordings in place of SCRIPT,
    nothing runs.

    \b
      habana-mp compare train.py --steps 1
      habana-mp compare --policy hmp --with torch-cpu train.py --steps 1
      habana-mp compare train.py --steps 1 --policy hmp --with torch-cpu
      habana-mp compare --rtol 1e-5 --with reference.rec train.py --steps 1
      habana-mp compare --module transformer.h=model.layers a.rec b.rec

    After SCRIPT, the command reads --policy and --with only if --with is there and not before SCRIPT.

    The exit code is 1 if the runs differ and 0 if they do not. If the script fails, it is that of the script.
    """
    other = other or NONE.name
    with user_errors():
        terms = Terms.of(dict(modules), rtol)
    first = _first(other)
    begin_random_numbers()
    endings: list[SystemExit | None] = []
    runs = compared_with(first, lambda: endings.append(ending_of(script)), terms)
    # Without --policy, the script may have replaced the default or ended it.
    own = in_force.policy.name if in_force.policy else "the script's"
    names = _name_of(other), own
    if is_recording(other):
        found = beside(runs, first, names)
    else:  # of the same program and machine
        of_first = None if other == NONE.name else recorded_policy(first.about)
        found = runs.comparison(names, diff_of(of_first, in_force.policy))
    flush(sys.stdout)
    if (ending := endings[0]) is not None and ending.code:
        say(f"\n{found}", err=True)
        write_files(found, html, json_file)
        raise ending
    _show(found, html, json_file)


def _show(found: Comparison, html: str | None, json_file: str | None) -> None:
    say(f"\n{found}", err=True)
    write_files(found, html, json_file)
    if not found.same:
        raise SystemExit(1)


def _first(other: str) -> Kept:
    """Run a: a recording, or a process that records it now."""
    with user_errors():
        if is_recording(other):
            return load(other)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"a{SUFFIX}"
            _record(other, path)
            return load(path)


def _record(policy: str, path: Path) -> None:
    """Of the script of this command, with its options but the policy."""
    given = click.get_current_context().params
    flush(sys.stdout, sys.stderr)
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined] # as multiprocessing does
    options = [*(["-m"] if given["is_module"] else []), *(["--device", given["device"]] if given["device"] else [])]
    command = [
        "record",
        "--policy",
        policy,
        "--output",
        os.fspath(path),
        *options,
        given["script"],
        *given["arguments"],
    ]
    child = subprocess.run([sys.executable, *flags, "-m", "habana_mp", *command], check=False)  # noqa: S603 - no shell
    if code := child.returncode:
        say(f"Run a, under {_name_of(policy)}, ended with {code}: nothing is compared.", err=True)
        raise SystemExit(code if code > 0 else 128 - code)


def _name_of(other: str) -> str:
    return other if is_recording(other) else PolicyParameter().convert(other, None, None).name
