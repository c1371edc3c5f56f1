"""``habana-mp lists edit``: a policy with some ops listed otherwise, as a folder or as text."""

from __future__ import annotations

from pathlib import Path

import click

from habana_mp._policy.edit import read_edit
from habana_mp._policy.folder import write_folder
from habana_mp._show.units import printable
from habana_mp.cli.console import Problem, user_errors
from habana_mp.cli.parameters import PolicyParameter, complete_edit, tell_of_the_rest
from habana_mp.hmp import Policy


# -mm is an edit, not an option.
@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("policy", type=PolicyParameter())
@click.argument("edits", nargs=-1, required=True, metavar="EDIT...", shell_complete=complete_edit)
@click.option(
    "--output",
    metavar="FOLDER",
    type=click.Path(file_okay=False),
    help="Write the policy to this folder, under the name of the folder.",
)
def edit(policy: Policy, edits: tuple[str, ...], output: str | None) -> None:
    """Make a policy by editing another one.

    +op:list puts an op into a list, and -op removes it from all lists. The lists are lower, fp32, promote, weight_int8, int8 and error. op@float16 and
    op@bfloat16 are for one low dtype only. Without --output the command prints the text of the policy. --policy, Policy.load and
    convert(policy=...) accept both the text and the folder:

    \b
      habana-mp lists edit hmp +softmax:lower -layer_norm --output my_policy
      habana-mp run --policy my_policy train.py
      habana-mp run --policy "$(habana-mp lists edit hmp -mm)" train.py
    """
    with user_errors():
        read = [*map(read_edit, edits)]
        edited = policy.with_edits(*read, strict=True)
        if output is None:
            click.echo(str(edited))
            tell_of_the_rest(edited, read)
            return
        folder = Path(output)
        before = folder / "policy.toml"
        if folder.is_dir() and any(folder.iterdir()) and not (before.is_file() and Policy.load(folder) == policy):
            raise Problem(f"{output} has files in it. Use a new folder, or that of the edited policy")
        named = edited._core.replaced(name=printable(folder.resolve().name))
        folder.mkdir(parents=True, exist_ok=True)
        write_folder(folder, named, f"{policy.name} with {' '.join(edits)}")
        tell_of_the_rest(edited, read)
