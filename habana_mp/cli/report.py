"""``habana-mp report``: a script run inside ``hmp.report()``, and what it showed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

import habana_mp
from habana_mp.cli.console import Problem, console, told
from habana_mp.cli.run import script_command
from habana_mp.cli.script import Script, run_script


def _new_file(ctx: click.Context, param: click.Parameter, path: str | None) -> str | None:  # noqa: ARG001 - click's signature
    """Refuse before the script runs, which may take hours, what cannot be written after it."""
    if path is None or path == "-":
        return path
    folder = Path(path).parent
    if Path(path).is_dir() or not folder.is_dir() or not os.access(path if Path(path).exists() else folder, os.W_OK):
        raise Problem(f"{param.opts[0]} {path}: no file can be written there")
    return str(Path(path).absolute())  # the script may change the folder


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--html", callback=_new_file, metavar="FILE", help="Write it as a page for the browser, too.")
@click.option(
    "--json", "json_file", callback=_new_file, metavar="FILE", help="Write it as JSON, too; - is a last line of stdout."
)
@script_command
def report(script: Script, html: str | None, json_file: str | None) -> None:
    """Run a script and report its casts.

    It runs as by `habana-mp run`; then which op ran in which precision, why, and what that cost is printed on stderr, also if the
    script fails:

    \b
      habana-mp report train.py --epochs 1
      habana-mp report --html casts.html --policy torch-cpu train.py

    The exit code is the script's.
    """
    process, ending = os.getpid(), None
    with habana_mp.report() as seen:  # type: ignore[attr-defined]
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


def _show(seen: Any, html: str | None, json_file: str | None) -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    console(stderr=True).print(seen)
    with told():
        if html:
            seen.to_html(html)
        if json_file == "-":
            import json

            click.echo(json.dumps(seen.to_dict()))
        elif json_file:
            seen.to_json(json_file)
