"""What mkdocs calls while it builds the documentation: the table of docs/presets.md is made from the lists as they are."""

from __future__ import annotations

from html import escape
from typing import Any

from habana_mp import Policy, presets
from habana_mp._policy.homes import homes

TABLE = "<!-- every op in every preset -->"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    return markdown.replace(TABLE, table()) if page.file.src_uri == "presets.md" else markdown


def table() -> str:
    """Every op that a preset decides, by each of its names; calls in place have a rule of their own and are left out."""
    policies = [Policy.load(name) for name in presets()]
    names = {home.name for home in homes() if not home.in_place}
    names.update(*(listed for policy in policies for listed in policy.lists.values()))
    rows = []
    for op in sorted(names, key=lambda name: (name.strip("_").lower(), name)):
        rules = [policy._rule(op) for policy in policies]
        if any(rule.action != "rest" for rule in rules):
            cells = "".join(
                f'<td class="{rule.action}" title="{escape(_source(rule))}">{_shown(rule.action)}</td>'
                for rule in rules
            )
            rows.append(f'<tr><th scope="row"><code>{escape(op).replace("_", "_<wbr>")}</code></th>{cells}</tr>')
    heads = "".join(
        f'<th scope="col"><button>{policy.name}</button><small>{str(policy.low_dtype).removeprefix("torch.")}<br>{policy.rest}</small></th>'
        for policy in policies
    )
    return (
        '<div class="presets"><table id="preset-table" class="preset-table">'
        f'<thead><tr><th scope="col"><button>op</button><small>lower is<br>rest is</small></th>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _shown(action: str) -> str:
    return "·" if action == "rest" else action


def _source(rule: Any) -> str:
    """Where a cell comes from: the line of the list, under whatever name it has the op."""
    return str(rule).replace(str(rule.file), "lists/" + "/".join(rule.file.split("/")[-2:])) if rule.file else str(rule)
