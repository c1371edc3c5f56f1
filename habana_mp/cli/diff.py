"""``habana-mp diff``: what is different between two reports."""

from __future__ import annotations

import click

from habana_mp._evidence.recordings.file import is_recording
from habana_mp.cli.console import Problem, user_errors
from habana_mp.cli.output import html_option
from habana_mp.hmp import CastReport


@click.command()
@click.argument("before", type=click.Path(exists=True, dir_okay=False))
@click.argument("after", type=click.Path(exists=True, dir_okay=False))
@html_option
def diff(before: str, after: str, html: str | None) -> None:
    """Print which casts and errors differ between two reports.

    BEFORE and AFTER are files of habana-mp report --json, or of CastReport.to_json:

    \b
      habana-mp diff before.json after.json
      habana-mp diff --html diff.html before.json after.json

    The exit code is 1 if the casts differ.
    """
    with user_errors():
        for path in (before, after):
            if is_recording(path):
                raise Problem(f"{path} is a recording, not a report: habana-mp compare compares two recordings")
        found = CastReport.load(before).diff(CastReport.load(after))
        if html:
            found.to_html(html)
    click.echo(str(found))
    if found:
        raise SystemExit(1)
