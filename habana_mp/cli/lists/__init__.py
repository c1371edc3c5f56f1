"""``habana-mp lists``: the presets and policies, shown and compared. ``check`` and ``edit`` have files of their own."""

from __future__ import annotations

import click

from habana_mp._policy.diff import PolicyDiff, action_of, settings_of, words
from habana_mp._policy.edit import ALL_LISTS
from habana_mp._policy.folder import SCHEMA, source_of
from habana_mp.cli.console import print_rich, print_table
from habana_mp.cli.lists.check import check
from habana_mp.cli.lists.edit import edit
from habana_mp.cli.output import json_option, write_json
from habana_mp.cli.parameters import PolicyParameter
from habana_mp.hmp import Policy, presets

_POLICY = PolicyParameter()


@click.group()
def lists() -> None:
    """Show, compare, check and edit policies and lists of ops."""


lists.add_command(check)
lists.add_command(edit)


@lists.command("presets")
@json_option
def show_presets(json_file: str | None) -> None:
    """Print the policies in habana_mp.

    \b
      habana-mp lists presets
    """
    found = [Policy.load(name) for name in presets()]
    if json_file:
        rows = [
            {
                "name": each.name,
                **settings_of(each),
                "source": source_of(each.name),
                "listed": {title: len(ops) for title, ops in each.lists.items()},
            }
            for each in found
        ]
        write_json(rows, json_file)
        if json_file == "-":
            return
    print_table(
        ("preset", "low dtype", "lower", "fp32", "promote", "rest", "cache", "source"),
        [
            (
                each.name,
                each._core.low_dtype,
                *(str(len(each.lists[title])) for title in ("lower", "fp32", "promote")),
                each.rest,
                words(each.cached),
                source_of(each.name),
            )
            for each in found
        ],
        numbers=("lower", "fp32", "promote"),
    )


@lists.command()
@click.argument("policy", type=_POLICY)
@json_option
def show(policy: Policy, json_file: str | None) -> None:
    """Print the settings and lists of a policy.

    POLICY is a preset, a folder, a gaudi_config.json or the text of a policy.

    \b
      habana-mp lists show hmp
    """
    overruled = _overruled(policy)
    if json_file:
        values = {"lists": policy.lists, "limited": policy.limited, "overruled": overruled}
        write_json({"name": policy.name, **settings_of(policy), **values}, json_file)
        if json_file == "-":
            return
    from rich.columns import Columns

    print_rich(policy.name, style="bold")
    for title, setting in settings_of(policy).items():
        click.echo(f"  {title:<10}  {words(setting)}")
    for title, limited in policy.limited.items():
        if limited:
            print_rich(f"\n{title}, in some modules ({len(limited)})", style="bold")
            click.echo("".join(f"{line}\n" for line in limited), nl=False)
    for title, ops in policy.lists.items():
        if ops:
            print_rich(f"\n{title} ({len(ops)})", style="bold")
            names = [f"{op} ({overruled[title][op]})" if op in overruled[title] else op for op in ops]
            print_rich(Columns(names, padding=(0, 2), column_first=True))
    if any(overruled.values()):
        click.echo("\nA list in parentheses names the op too, and decides.")


def _overruled(policy: Policy) -> dict[str, dict[str, str]]:
    """The names of each list that another one decides, and which: the error list is asked first, then lower, fp32 and promote."""
    found: dict[str, dict[str, str]] = {}
    for title in ALL_LISTS:
        entries = [entry for entry in policy._core.entries if entry.list == title and not entry.modules]
        actions = {str(entry): action_of(policy, entry) for entry in entries}
        found[title] = {op: action for op, action in actions.items() if action != title}
    return found


@lists.command()
@click.argument("a", type=_POLICY)
@click.argument("b", type=_POLICY)
@json_option
def diff(a: Policy, b: Policy, json_file: str | None) -> None:
    """Print the differences of two policies: settings, then ops.

    Exit code 0: there are none; 1: there are some.

    \b
      habana-mp lists diff hmp hmp-resnet50
    """
    difference = PolicyDiff.between(a, b)
    write_json({"a": a.name, "b": b.name, "settings": difference.settings, "ops": difference.ops}, json_file)
    if difference and json_file != "-":
        titles = (a.name, b.name) if a.name != b.name else (f"{a.name} (A)", f"{b.name} (B)")
        rests = [{"rest": f"rest: {policy.rest}"} for policy in (a, b)]
        rows = [(title, words(before), words(after)) for title, (before, after) in difference.settings.items()]
        rows += [
            (name, rests[0].get(before, before), rests[1].get(after, after))
            for name, (before, after) in difference.ops.items()
        ]
        print_table(("", *titles), rows)
    if difference:
        raise SystemExit(1)


@lists.command()
def schema() -> None:
    """Print the JSON schema of policy.toml, for editors.

    \b
      habana-mp lists schema > policy.schema.json
    """
    click.echo(SCHEMA.read_text(encoding="utf-8"), nl=False)
