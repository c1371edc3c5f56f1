"""Options of a command that are behind its script. The script gets them, so a warning says so if it seems to know nothing of them; or
the command takes them.

Knows scripts and options, no policies.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import SourceFileLoader
from types import CodeType

import click

from habana_mp._show.stream import say
from habana_mp.cli.console import Problem
from habana_mp.cli.script import Script, constants


def warn_of_options_behind(script: Script, arguments: Sequence[str], command: click.Command) -> None:
    """One line on stderr for those that the script does not know. After ``--``, nothing is for us."""
    options = {
        text for each in command.params if isinstance(each, click.Option) for text in each.opts if text.startswith("--")
    }
    end = arguments.index("--") if "--" in arguments else len(arguments)
    given = [text for text in dict.fromkeys(each.partition("=")[0] for each in arguments[:end]) if text in options]
    if not given:
        return
    known = {text for code in _codes(script) for text in constants(code, names=False)}
    # A string defines an option as it is, in a text, or as the name of a field or flag: --policy, policy.
    fields = {text.replace("_", "-") for text in known}
    unknown = [each for each in given if each[2:] not in fields and not any(each in text for text in known)]
    if unknown:
        say(
            f"Warning: the script gets {', '.join(unknown)}. Put options of habana-mp before {script.name}",
            err=True,
        )


def taken(arguments: list[str], option: str, what: str) -> str | None:
    """The value of an option among the arguments of a script, which then lack both; None if it is not there."""
    if option not in arguments:
        return None
    place = arguments.index(option)
    if place + 1 == len(arguments):
        raise Problem(f"{option} takes {what}")
    _, value = arguments[place : place + 2]
    del arguments[place : place + 2]
    return value


def _codes(script: Script) -> Iterator[CodeType]:
    """The script, and the modules beside it that it names: many scripts have their parser in one."""
    yield script.code
    folders = {os.path.dirname(script.module.__file__ or ""), sys.path[0]}  # noqa: PTH120
    for name in {*constants(script.code)}:
        if name.replace(".", "").isidentifier():
            for folder in folders:
                path = os.path.join(folder, *name.split(".")) + ".py"  # noqa: PTH118
                # The script may name it for another reason, or report better what is wrong with it.
                with contextlib.suppress(OSError, SyntaxError):
                    if code := SourceFileLoader(name, path).get_code(name):
                        yield code
