"""The kinds of parameters: policies, ops and edits of policies, read, refused in one line, and completed by the shell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from habana_mp._policy.folder import LISTS
from habana_mp._policy.names import known_names
from habana_mp.cli.console import user_errors
from habana_mp.hmp import Policy, presets

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:  # click 8.1 has no type arguments
    _ParamType = click.ParamType


class PolicyParameter(_ParamType):
    """A preset, a folder, a gaudi_config.json or the text of a policy. Gives a ``Policy``."""

    name = "policy"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Policy:  # noqa: ARG002
        if isinstance(value, Policy):
            return value
        with user_errors():
            return Policy.load(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        named = [CompletionItem(name) for name in presets() if name.startswith(incomplete)]
        return named or [CompletionItem(incomplete, type="file")]


class OpParameter(_ParamType):
    """The name of an op."""

    name = "op"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        return [CompletionItem(name) for name in _ops(incomplete)]


class EditParameter(_ParamType):
    """``+op:list`` or ``-op``, as ``Policy.with_edits`` takes them."""

    name = "edit"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        sign, (op, colon, title) = incomplete[:1], incomplete[1:].partition(":")
        if sign == "+" and colon:
            return [CompletionItem(f"+{op}:{each}") for each in LISTS if each.startswith(title)]
        return [CompletionItem(sign + name) for name in _ops(op)] if sign in {"+", "-"} else []


def _ops(begin: str) -> list[str]:
    """Overloads and private names only for who has begun to write one."""
    return sorted(
        name
        for name in known_names()
        if name.startswith(begin) and ("." in begin or "." not in name) and (begin or not name.startswith("_"))
    )
