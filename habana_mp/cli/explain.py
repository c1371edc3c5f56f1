"""``habana-mp explain``: what ``hmp.explain`` answers."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from habana_mp._cast import dtype_name
from habana_mp._explain.explanation import Explanation, Explanations
from habana_mp.cli.console import user_errors
from habana_mp.cli.output import json_option, write_json
from habana_mp.cli.parameters import complete_op, policy_options
from habana_mp.hmp import Policy
from habana_mp.hmp import explain as explain_op


@click.command()
@policy_options(".", default="hmp")
@json_option
@click.argument("ops", nargs=-1, required=True, metavar="OP...", shell_complete=complete_op)
def explain(ops: tuple[str, ...], policy: Policy | None, json_file: str | None) -> None:
    """Print which rule an op has, and the line of the list that sets it.

    OP is any name of an op: layer_norm, torch.nn.functional.layer_norm, Tensor.__matmul__, pow.Tensor_Scalar. A module of torch.nn means
    the ops that it calls. A part of a name means the ops that have it in their names. Several ops are printed in one line each.

    \b
      habana-mp explain softmax
      habana-mp explain softmax --policy torch-cuda
      habana-mp explain attention nn.LSTM
    """
    state = "asked for here" if policy else "what a plain convert() uses"
    with user_errors():
        explained = explain_op(*ops, policy=policy or Policy.load("hmp"))
    found = explained if isinstance(explained, Explanations) else Explanations([explained])
    found = Explanations(dataclasses.replace(each, state=state) for each in found)
    is_one = isinstance(explained, Explanation)
    if json_file != "-":
        click.echo(found[0] if is_one else found)
    if json_file:
        values = [_values(each) for each in found]
        write_json(values[0] if is_one else values, json_file)


def _values(explained: Explanation) -> dict[str, Any]:
    rule = {**dataclasses.asdict(explained.rule), "low_dtype": dtype_name(explained.rule.low_dtype)}
    return {
        "op": explained.op,
        "policy": explained.policy.name,
        "rule": rule,
        "arguments": explained.arguments,
        "homes": explained.homes,
        "notes": explained.notes,
    }
