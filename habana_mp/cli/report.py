"""``habana-mp report``: a script run inside ``hmp.report()``, and what it showed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

import click

from habana_mp import hmp
from habana_mp._policy.edit import edits_in
from habana_mp._ranks.rank import rank, world_size
from habana_mp._report.findings.beginning import edits_text
from habana_mp._report.findings.unknown import known_errors, no_op, unmeasured, why_nothing
from habana_mp._report.form import schema
from habana_mp._report.formats import FORMATS
from habana_mp._show.stream import flush, say
from habana_mp._show.writing import written
from habana_mp.cli.console import Problem, print_rich, user_errors
from habana_mp.cli.output import html_option, json_option, write_files
from habana_mp.cli.parameters import formats_option, new_file
from habana_mp.cli.run import script_command
from habana_mp.cli.script import Script, ending_of


def _print_schema(ctx: click.Context, param: click.Parameter, value: bool) -> None:  # noqa: ARG001 - click's signature
    if value:
        click.echo(json.dumps(schema(), indent=1))
        ctx.exit()


@click.command(context_settings={"allow_interspersed_args": False})
@html_option
@json_option
@click.option(
    "--values",
    is_flag=True,
    help="Also measure the error that the casts make, and which op makes it. A step takes three times as long or more.",
)
@formats_option(
    FORMATS,
    (),
    f"Also measure what ops would be in 8 bits, as in these lists: {','.join(FORMATS)}, or one of them. Needs --values.",
)
@click.option(
    "--write-edits",
    "edits_file",
    callback=new_file,
    metavar="FILE",
    help="Write the edits that the errors suggest, one per line, for --edit FILE. Needs --values. With --formats, those into 8 bits.",
)
@click.option(
    "--per",
    type=click.Choice(["op", "module"]),
    help="These edits are of an op, or of an op in some modules. Default: op.",
)
@click.option(
    "--max-casts",
    type=click.IntRange(min=0),
    metavar="N",
    help="Exit with 1 if there are more casts in forward passes, or no op was seen.",
)
@click.option(
    "--max-error",
    type=click.FloatRange(min=0),
    metavar="X",
    help="Exit with 1 if the error of an op, relative to its results, is larger, if an op loses numbers, or if nothing was measured. "
    "Needs --values.",
)
@click.option(
    "--baseline",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Exit with 1 if the casts differ from those of this report (of --json), and print the difference.",
)
@click.option(
    "--schema",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_schema,
    help="Print the JSON schema of what --json writes, and run no script.",
)
@script_command
def report(
    script: Script,
    *,
    html: str | None,
    json_file: str | None,
    edits_file: str | None,
    per: str | None,
    max_casts: int | None,
    max_error: float | None,
    baseline: str | None,
    values: bool,
    formats: tuple[str, ...],
) -> None:
    """Run a script and report its casts.

    The script runs as with `habana-mp run`. Then the command prints on stderr which op ran in which precision, why, and what that cost.
    It does so if the script fails, too:

    \b
      habana-mp report train.py --epochs 1
      habana-mp report --html casts.html --policy torch-cpu train.py
      habana-mp report --values train.py --steps 1

    Under torchrun each rank writes its files, and the first one prints:

    \b
      torchrun --nproc-per-node 2 -m habana_mp report --json r%r.json train.py

    The exit code is that of the script. If that is 0, it is 1 if the report exceeds --max-casts or --max-error or differs from --baseline.
    """
    if not values and (edits_file or formats or max_error is not None):
        raise Problem(f"--{'write-edits' if edits_file else 'formats' if formats else 'max-error'} needs --values")
    if per is not None and not edits_file:
        raise Problem("--per needs --write-edits FILE")
    with user_errors():
        before = None if baseline is None else hmp.CastReport.load(baseline)
    process = os.getpid()
    with hmp.report(values=values, formats=formats) as seen:
        seen.title = script.name
        ending = ending_of(script)
    if os.getpid() != process:  # a child that the script forked and that came to its end
        raise SystemExit if ending is None else ending
    flush(sys.stdout, sys.stderr)
    if rank() == 0:
        say(f"\nRank 0 of {world_size()}:" if world_size() > 1 else "", err=True)
        print_rich(seen, stderr=True)
    write_files(seen, html, json_file)
    if edits_file:
        with user_errors():
            text = edits_text(seen._data(), per or "op", formats)
            written(text, edits_file)
        if rank() == 0 and not any(edits_in(text)):
            say(f"--write-edits: no edits. The reason is in {edits_file}", err=True)
    if ending is not None and ending.code:
        raise ending
    if max_error is not None:
        for why in unmeasured(seen._data()):
            say(f"--max-error: {': '.join(why)}", err=True)
    beyond = [*_beyond(seen, max_casts, max_error, before)]
    for line in beyond:
        say(line, err=True)
    if beyond:
        raise SystemExit(1)


def _beyond(
    seen: hmp.CastReport, max_casts: int | None, max_error: float | None, before: hmp.CastReport | None
) -> Iterator[str]:
    """A line for each limit that is not kept."""
    data = seen._data()
    if max_casts is not None and not data.rows:
        yield f"--max-casts {max_casts}: {': '.join(no_op(data))}"
    if max_casts is not None and seen.casts() > max_casts:
        yield f"--max-casts {max_casts}: there are {seen.casts():,}"
    if max_error is not None:
        if why := why_nothing(data):
            yield f"--max-error {max_error:g}: {': '.join(why)}"
        for op, error in known_errors(data).items():
            if float(error) > max_error or error.lost:
                lost = f", {error.lost:,} numbers that are not finite" if error.lost else ""
                yield f"--max-error {max_error:g}: {op} has {float(error):.2g}{lost}"
    if before is not None and (found := before.diff(seen)):
        yield f"--baseline: the casts differ\n{found}"
