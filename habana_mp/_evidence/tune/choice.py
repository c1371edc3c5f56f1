"""A choice of the parts that run in float32, as a policy."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from habana_mp._evidence.tune.parts import Part, Parts
from habana_mp._policy.policy import Policy


def policy_of(base: Policy, parts: Parts, in_float32: Collection[int], others: str) -> Policy:
    """The policy ``base`` with each op of the parts in the list "fp32" or, with ``others`` "lower", in that one; with "start" those stay as they are."""
    edits = [f"+{name}:{title}" for name, title in _lines(parts, in_float32)]
    if others == "start":
        edits = [edit for edit in edits if edit.endswith(":fp32")]
    # What the start has for an op in some modules would win over what is decided for it everywhere.
    whole = {edit[1:].partition(":")[0] for edit in edits if " in " not in edit}
    limited = [name for names in base.limited.values() for name in names if _op_of(name) in whole]
    return base.with_edits(*(f"-{name}" for name in limited), *edits) if edits else base


def _op_of(name: str) -> str:
    return name.partition(" in ")[0].partition("@")[0].partition(".")[0]


def _lines(parts: Parts, in_float32: Collection[int]) -> Iterator[tuple[str, str]]:
    """Each name with its list. What holds for an op in the whole model has no lines for modules beside it."""
    lists = {part: "fp32" if i in in_float32 else "lower" for i, part in enumerate(parts)}
    for op in sorted({part.op for part in parts}):
        own = sorted((part for part in parts if part.op == op), key=lambda part: part.modules.count("."))
        everywhere = _everywhere(own, lists)
        yield op, everywhere
        written: dict[str, str] = {}
        for part in own:
            if part.modules and lists[part] != _round(part.modules, written, everywhere):
                written[part.modules] = lists[part]
                yield part.name, lists[part]


def _everywhere(own: list[Part], lists: dict[Part, str]) -> str:
    """The list of an op outside of all modules; where it is not called there, the one that most of its numbers want."""
    for part in own:
        if not part.modules:
            return lists[part]
    wide = sum(part.numbers if lists[part] == "fp32" else -part.numbers for part in own)
    return "fp32" if wide > 0 else "lower"


def _round(modules: str, written: dict[str, str], everywhere: str) -> str:
    """The list that holds in a module by the lines for those round it."""
    path = modules
    while path:
        if path in written:
            return written[path]
        path = path.rpartition(".")[0]
    return everywhere
