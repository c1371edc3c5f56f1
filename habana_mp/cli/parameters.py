"""The kinds of parameters: policies, ops and edits of policies, read, refused in one line, and completed by the shell. And the options
by which every command takes a policy.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

import habana_mp._core as core
from habana_mp._cast import low_name
from habana_mp._policy.edit import LISTS, Edit, edits_of, listed, read_edit
from habana_mp._policy.list_file import ListFile, parse_list
from habana_mp._policy.names import check_known, known_names
from habana_mp._policy.policy import with_files
from habana_mp._ranks.rank import rank, world_size
from habana_mp._report.formats import checked_formats
from habana_mp._show.units import encodable
from habana_mp.cli.console import Problem, user_errors
from habana_mp.hmp import Policy, presets

# The policy of a command that runs a script or a step, if neither its options nor the script choose one.
DEFAULT = "balanced"


# Plain PyTorch: also regions of hmp.autocast cast nothing.
NONE = Policy.from_ops(name="none")


class PolicyParameter(click.ParamType):  # type: ignore[type-arg, unused-ignore] # click 8.1 has no type arguments
    """A preset, a folder, a gaudi_config.json, the text of a policy, or "none". Gives a ``Policy``."""

    name = "policy"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Policy:  # noqa: ARG002
        if isinstance(value, Policy):
            return value
        if value == NONE.name:
            return NONE
        with user_errors():
            return Policy.load(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        named = [CompletionItem(name) for name in presets() if name.startswith(incomplete)]
        return named or [CompletionItem(incomplete, type="file")]


class ListParameter(click.ParamType):  # type: ignore[type-arg, unused-ignore] # click 8.1 has no type arguments
    """A list file, or ``+op`` and ``-op``, which edit the list."""

    name = "list"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if _is_edit(value):
            return str(value)
        if value in known_names() and not os.path.exists(value):  # noqa: PTH110 - Path raises for names that are too long
            self.fail(f"File {value!r} does not exist. For the op write +{value}.", param, ctx)
        return str(click.Path(exists=True, dir_okay=False).convert(value, param, ctx))

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        if _is_edit(incomplete):
            return [CompletionItem(incomplete[0] + name) for name in complete_op(ctx, param, incomplete[1:])]
        return [CompletionItem(incomplete, type="file")]


def _is_edit(text: str) -> bool:
    return text[:1] in ("+", "-")


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


def _list_option(name: str, purpose: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    about = f"A list file for {purpose}, or edits of that list. Edits are repeatable."
    return click.option(name, multiple=True, type=ListParameter(), metavar="FILE|+OP|-OP", help=about)


def policy_options(about: str, default: str = DEFAULT) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The options by which a policy is named and changed; the command gets it as ``policy``, None where none of them is given.

    Changes without a name are changes of ``default``.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @click.option(
            "--policy",
            type=PolicyParameter(),
            metavar="P",
            help=f"A preset, a folder, a gaudi_config.json, the text of a policy, or none, which casts nothing. Default: {default}{about}",
        )
        @_list_option("--lower", "the lower precision")
        @_list_option("--fp32", "float32")
        @click.option(
            "--edit",
            "edits",
            multiple=True,
            shell_complete=complete_edit,
            metavar="+OP:LIST|-OP|FILE",
            help="Put an op into a list (lower, fp32, promote, weight_int8, int8, error), or remove it from all lists; or a FILE of such edits. Repeatable.",
        )
        @click.option("--low-dtype", metavar="DTYPE", help="The lower precision: bfloat16 (bf16) or float16 (fp16).")
        @functools.wraps(function)
        def command(
            *,
            policy: Policy | None,
            lower: tuple[str, ...],
            fp32: tuple[str, ...],
            edits: tuple[str, ...],
            low_dtype: str | None,
            **others: Any,
        ) -> None:
            if lower or fp32 or edits or low_dtype is not None:
                with user_errors():
                    read = [*_edits_in(edits)]
                    policy = _changed(policy or Policy.load(default), {"lower": lower, "fp32": fp32}, read, low_dtype)
            function(policy=policy, **others)

        return command

    return decorate


def formats_option(accepted: Sequence[str], default: Sequence[str], about: str) -> Callable[..., Any]:
    """Names between commas; the command gets them as ``formats``."""

    def read(ctx: click.Context, param: click.Parameter, text: str) -> tuple[str, ...]:  # noqa: ARG001 - click's signature
        names = [name.strip() for name in text.split(",") if name.strip()]
        try:
            return checked_formats(names, accepted)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return click.option("--formats", default=",".join(default), metavar="NAMES", callback=read, help=about)


def _edits_in(values: Iterable[str]) -> Iterator[Edit]:
    """Those of files too."""
    for value in values:
        if _is_edit(value):
            yield read_edit(value)
            continue
        try:
            for place, edit in edits_of(value):
                try:
                    check_known([edit.entry], value, strict=True)
                except ValueError as error:
                    raise Problem(f"--edit {place}: {error}") from None
                yield edit
        except ValueError as error:
            raise Problem(f"--edit {error}") from None
        except OSError as error:
            accepted = "Accepted are '+op:list', '-op', and a file of them"
            is_op = re.split("[:@ ]", value)[0] in known_names()  # whose sign was forgotten
            why = "an edit begins with + or -" if is_op else error.strerror
            raise Problem(f"--edit {value}: {why}. {accepted}") from None


def _changed(policy: Policy, lists: dict[str, tuple[str, ...]], edits: Sequence[Edit], low_dtype: str | None) -> Policy:
    """Files first, then their edits, then the others: each edit of the command line wins over a file."""
    files: dict[str, str] = {}
    edit_files: dict[str, ListFile] = {}
    for title, values in lists.items():
        named = [value for value in values if not _is_edit(value)]
        if len(named) > 1:
            raise Problem(f"--{title} takes one file, and any number of +op and -op, not {' and '.join(named)}")
        if named:
            files[title] = named[0]
        if edited := [value for value in values if _is_edit(value)]:
            edit_files[title] = parse_list(encodable("\n".join(edited)).encode(), f"--{title}", title)
    if files:
        policy = Policy.from_files(files.get("lower"), files.get("fp32"), base=policy)
    low = None if low_dtype is None else low_name(low_dtype, "--low-dtype")
    policy = with_files(policy, edit_files, low, strict=True)
    if edits:
        policy = policy.with_edits(*edits, strict=True)
    of_lists = [Edit(entry, removed=True) for file in edit_files.values() for entry in file.removed]
    tell_of_the_rest(policy, [*edits, *of_lists])
    return policy


_REST = {
    "first_input": "follows its first input",
    "inputs": "runs in the dtypes of its inputs",
    "fp32": "runs in float32, as the rest does",
}


def tell_of_the_rest(policy: Policy, edits: Iterable[Edit]) -> None:
    """A line for each op that edits have taken out of the lists, because what happens to it then is written in none of them."""
    taken_out = dict.fromkeys(entry.op for entry, removed in edits if removed and not entry.modules)
    for op in taken_out:
        if policy._rule(op).action == "rest":
            cure = "" if policy.rest == "fp32" else f"; +{op}:fp32 keeps it in float32"
            click.echo(f"Note: {op} now {_REST[policy.rest]}{cure}", err=True)


def complete_op(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001 - click's signature
    """Overloads and private names only for who has begun to write one."""
    return sorted(
        name
        for name in known_names()
        if name.startswith(incomplete)
        and ("." in incomplete or "." not in name)
        and (incomplete or not name.startswith("_"))
    )


def complete_edit(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Of ``+op:list`` or ``-op``, as ``Policy.with_edits`` takes them."""
    sign, (op, colon, title) = incomplete[:1], incomplete[1:].partition(":")
    if sign == "+" and colon:
        return [f"+{op}:{each}" for each in LISTS if each.startswith(title) and not core.problem_of(listed(op, each))]
    return [sign + name for name in complete_op(ctx, param, op)] if sign in {"+", "-"} else []
