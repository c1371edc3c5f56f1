"""What the commands write to the terminal: tables, JSON, and problems in one line. Tables and bars are rich's."""

from __future__ import annotations

import contextlib
import io
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import click

from habana_mp._show.stream import is_terminal, say

# Where no terminal has a width: wide enough that no table is cut in a file.
_WIDTH_OF_A_FILE = 200


class Problem(click.ClickException):
    """Wrong input, printed in one line. Exit code 2, as for a wrong command line."""

    exit_code = 2

    def show(self, file: Any = None) -> None:  # noqa: ARG002 - click's signature
        say(f"Error: {self.format_message()}", err=True)


@contextlib.contextmanager
def user_errors() -> Iterator[None]:
    """Errors about what the user gave become a ``Problem``, warnings a line on stderr."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        except OSError as error:
            raise Problem(f"{error.filename}: {error.strerror}" if error.filename else str(error)) from None
        except ValueError as error:
            raise Problem(str(error)) from None
        finally:
            for warning in caught:
                say(f"Warning: {warning.message}", err=True)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[str] = ()) -> None:
    """Rows under bold titles; the columns ``numbers`` stand to the right. Only the last column is cut in a narrow terminal."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for i, column in enumerate(columns):
        width = max(len(cell) for cell in (column, *(row[i] for row in rows)))
        least = min(width, 12) if i == len(columns) - 1 else width
        table.add_column(column, justify="right" if column in numbers else "left", min_width=least)
    for row in rows:
        table.add_row(*map(Text, row))
    print_rich(table)


def print_rich(*values: Any, stderr: bool = False, **how: Any) -> None:
    """What rich makes of the values, without the blanks that it fills lines with."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    # rich asks a stream for more than it may have.
    out = Console(file=stream if is_terminal(stream) else io.StringIO(), highlight=False)
    if not out.is_terminal:
        out.width = max(out.width, _WIDTH_OF_A_FILE)
    with out.capture() as text:
        out.print(*values, crop=False, **how)
    lines = "\n".join(line.rstrip() for line in text.get().splitlines())
    (say if stderr else click.echo)(lines, err=stderr)
