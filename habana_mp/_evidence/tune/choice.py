"""A choice of the parts that run in float32, as a policy."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from habana_mp._core import Entry
from habana_mp._evidence.tune.parts import Part, Parts
from habana_mp._policy.edit import LISTS, Edit
from habana_mp._policy.policy import Policy


def policy_of(base: Policy, parts: Parts, in_float32: Collection[int], others: str) -> Policy:
    """The policy ``base`` with each op of the parts in the list "fp32" or, with ``others`` "lower", in that one; with "start" those stay as they are."""
    edits = [
        edit
        for op in sorted({part.op for part in parts})
        for edit in _edits(base, [(part, i in in_float32) for i, part in enumerate(parts) if part.op == op], others)
    ]
    # What the start has for an op in some modules would win over what is decided for it everywhere.
    whole = {edit.entry.op for edit in edits if not edit.entry.modules}
    limited = [entry for entry in base._core.entries if entry.modules and entry.base in whole]
    return base.with_edits(*(Edit(entry, removed=True) for entry in limited), *edits) if edits else base


def _edits(base: Policy, parts: list[tuple[Part, bool]], others: str) -> Iterator[Edit]:
    """Each name of one op into its list. What holds for the whole model has no lines for modules beside it.

    With "start" an op in no list cannot be said to be in none in some modules: what is round it holds there.
    """
    op = parts[0][0].op
    other = others if others == "lower" else base._rule(op).action
    everywhere = _everywhere(parts, others)
    if everywhere or others == "lower":
        yield _edit(Entry(op=op), "fp32" if everywhere else other)
    written: dict[str, bool] = {}
    for part, wide in sorted(parts, key=lambda each: each[0].modules.count(".")):
        if part.modules and wide != _round(part.modules, written, everywhere) and (wide or other in LISTS):
            written[part.modules] = wide
            yield _edit(part._entry, "fp32" if wide else other)


def _edit(entry: Entry, title: str) -> Edit:
    return Edit(entry.replaced(list=title), removed=False)


def _everywhere(parts: list[tuple[Part, bool]], others: str) -> bool:
    """Whether an op is in float32 outside of all modules; where it is not called there, what most of its numbers want, or all of them with "start"."""
    for part, wide in parts:
        if not part.modules:
            return wide
    if others == "start":
        return all(wide for _, wide in parts)
    return sum(part.numbers if wide else -part.numbers for part, wide in parts) > 0


def _round(modules: str, written: dict[str, bool], everywhere: bool) -> bool:
    """What holds in a module by the lines for those round it."""
    path = modules
    while path:
        if path in written:
            return written[path]
        path = path.rpartition(".")[0]
    return everywhere
