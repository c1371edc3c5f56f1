"""The options --html and --json, and what they write: the same in all commands."""

from __future__ import annotations

import json
from typing import Any

import click

from habana_mp._show.stream import say
from habana_mp._show.writing import written
from habana_mp.cli.console import Problem, user_errors
from habana_mp.cli.parameters import new_file

html_option = click.option(
    "--html",
    callback=new_file,
    metavar="FILE",
    help="Write the result as a page for the browser, too. %r in the name is the rank.",
)
json_option = click.option(
    "--json",
    "json_file",
    callback=new_file,
    metavar="FILE",
    help="Write the result as JSON, too. %r in the name is the rank; - prints it as the last line of stdout, in place of text there.",
)


def write_json(values: Any, json_file: str | None) -> None:
    if json_file == "-":
        if not say(json.dumps(values)):
            raise Problem("--json -: stdout cannot be written")
    elif json_file:
        with user_errors():
            written(json.dumps(values, indent=1), json_file)


def write_files(shown: Any, html: str | None, json_file: str | None) -> None:
    """The page and the JSON of what a command has shown, where they were asked for."""
    if html:
        with user_errors():
            shown.to_html(html)
    if json_file:
        write_json(shown.to_dict(), json_file)
