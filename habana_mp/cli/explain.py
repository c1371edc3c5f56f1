"""``habana-mp explain``: what ``hmp.explain`` answers."""

from __future__ import annotations

import dataclasses

import click

from habana_mp.cli.console import print_json, user_errors
from habana_mp.cli.parameters import OpParameter, PolicyParameter
from habana_mp.hmp import Policy
from habana_mp.hmp import explain as explain_op


@click.command()
@click.option(
    "--policy",
    type=PolicyParameter(),
    metavar="P",
    help="A preset, a folder, a gaudi_config.json or the text of a policy. Default: hmp.",
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.argument("op", type=OpParameter())
def explain(op: str, policy: Policy | None, as_json: bool) -> None:
    """Tell which rule an op has, and which line of which list says so.

    OP is any of its names: layer_norm, torch.nn.functional.layer_norm, Tensor.__matmul__, pow.Tensor_Scalar.

    \b
      habana-mp explain softmax
      habana-mp explain softmax --policy torch-cuda
    """
    with user_errors():
        explained = explain_op(op, policy=policy or Policy.load("hmp"))
    if as_json:
        rule = {**dataclasses.asdict(explained.rule), "low_dtype": str(explained.rule.low_dtype).removeprefix("torch.")}
        print_json(
            {
                "op": explained.op,
                "policy": explained.policy.name,
                "rule": rule,
                "arguments": explained.arguments,
                "homes": explained.homes,
                "notes": explained.notes,
            }
        )
    else:
        state = "asked for here" if policy else "what a plain convert() uses"
        click.echo(dataclasses.replace(explained, state=state))
