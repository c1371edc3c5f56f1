"""``habana-mp report``: a script run inside ``hmp.report()``, and what it showed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from habana_mp import hmp
from habana_mp._ranks.rank import rank, world_size
from habana_mp.cli.console import Problem, print_rich, user_errors
from habana_mp.cli.run import script_command
from habana_mp.cli.script import Script, run_script


def new_file(ctx: click.Context, param: click.Parameter, path: str | None) -> str | None:  # noqa: ARG001 - click's signature
    """Refuse before the script runs, which may take hours, what cannot be written after it, or what several ranks would write."""
    if path is None:
        return None
    if world_size() > 1 and "%r" not in path:
        raise Problem(
            f"{param.opts[0]} {path}: {world_size()} ranks would write it; put %r, which is the rank, into the name"
        )
    path = path.replace("%r", str(rank()))
    if path == "-" and param.name == "json_file":
        return path
    if path == "-":
        raise Problem(f"{param.opts[0]} -: a page is not written to stdout; give a file")
    file = Path(path).absolute()  # the script may change the folder
    was_there = file.exists()
    try:
        file.open("a").close()
    except OSError as error:
        raise Problem(f"{param.opts[0]} {path}: {error.strerror}") from None
    if not was_there:
        file.unlink()
    return str(file)


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--html",
    callback=new_file,
    metavar="FILE",
    help="Write it as a page for the browser, too; %r in the name is the rank.",
)
@click.option(
    "--json",
    "json_file",
    callback=new_file,
    metavar="FILE",
    help="Write it as JSON, too; %r is the rank, - a last line of stdout.",
)
@click.option(
    "--values",
    is_flag=True,
    help="Measure the error that the casts make, too, and which op makes it; a step takes three times as long or more.",
)
@script_command
def report(script: Script, html: str | None, json_file: str | None, *, values: bool) -> None:
    """Run a script and report its casts.

    It runs as by `habana-mp run`; then which op ran in which precision, why, and what that cost is printed on stderr, also if the
    script fails:

    \b
      habana-mp report train.py --epochs 1
      habana-mp report --html casts.html --policy torch-cpu train.py
      habana-mp report --values train.py --steps 1

    Under torchrun each rank writes its files, and the first one prints:

    \b
      torchrun --nproc-per-node 2 -m habana_mp report --json r%r.json train.py

    The exit code is the script's.
    """
    process, ending = os.getpid(), None
    with hmp.report(values=values) as seen:
        seen.title = script.name
        try:
            run_script(script)
        except SystemExit as error:
            ending = error
    if os.getpid() != process:  # a child that the script forked and that came to its end
        raise SystemExit if ending is None else ending
    _show(seen, html, json_file)
    if ending is not None:
        raise ending


def _show(seen: hmp.CastReport, html: str | None, json_file: str | None) -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    if rank() == 0:
        click.echo(f"\nRank 0 of {world_size()}:" if world_size() > 1 else "", err=True)
        print_rich(seen, stderr=True)
    with user_errors():
        if html:
            seen.to_html(html)
        if json_file == "-":
            import json

            click.echo(json.dumps(seen.to_dict()))
        elif json_file:
            seen.to_json(json_file)
