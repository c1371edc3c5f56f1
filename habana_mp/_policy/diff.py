"""``PolicyDiff``: what two policies decide otherwise. The command line shows it as a table, ``PolicyState`` as lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

import habana_mp._core as core
from habana_mp._policy.policy import Policy
from habana_mp._show.short import Short
from habana_mp._show.units import counted

# Two policies of different origin differ in a hundred ops, which nobody reads in a warning.
_MOST_LINES = 20


@dataclass(frozen=True, repr=False)
class PolicyDiff(Short):
    """Settings and ops with their value in each policy, where that differs. False where nothing does.

    Example:
        >>> from habana_mp.results import PolicyDiff
        >>> print(PolicyDiff.between(policy, policy.with_edits("+softmax:lower")))
        softmax: fp32 -> lower
    """

    settings: dict[str, tuple[Any, Any]]
    ops: dict[str, tuple[str, str]]

    @classmethod
    def between(cls, before: Policy, after: Policy) -> PolicyDiff:
        settings = {
            title: (first, second)
            for (title, first), second in zip(settings_of(before).items(), settings_of(after).values(), strict=True)
            if first != second
        }
        entries = [entry for policy in (before, after) for entry in policy._core.entries if not entry.modules]
        # Of an op that is listed for one low dtype, what holds without it is asked too.
        listed = {str(each): each for entry in entries for each in (entry, entry.replaced(low_dtype=""))}
        pairs = {name: (action_of(before, listed[name]), action_of(after, listed[name])) for name in sorted(listed)}
        # D17: for autocast the overloads of an op differ, where one of them is listed.
        ops = {entry.base for entry in entries if entry.op != entry.base}
        packets = {op: getattr(torch.ops.aten, op, None) for op in sorted(ops)}
        overloads = [
            f"{op}.{each}" for op, packet in packets.items() if packet is not None for each in packet.overloads()
        ]
        pairs |= {f"{name} (autocast)": (_of_overload(before, name), _of_overload(after, name)) for name in overloads}
        first, second = _limited(before), _limited(after)
        pairs |= {line: (first.get(line, "no line"), second.get(line, "no line")) for line in sorted({*first, *second})}
        return cls(settings, {name: pair for name, pair in pairs.items() if pair[0] != pair[1]})

    def __bool__(self) -> bool:
        return bool(self.settings or self.ops)

    def _line(self) -> str:
        return f"{counted(len(self.settings), 'setting')}, {counted(len(self.ops), 'op')}"

    def __str__(self) -> str:
        """A line each: "softmax: fp32 -> lower"."""
        lines = [f"{title}: {words(first)} -> {words(second)}" for title, (first, second) in self.settings.items()]
        lines += [f"{name}: {first} -> {second}" for name, (first, second) in self.ops.items()]
        more = len(lines) - _MOST_LINES
        return "\n".join([*lines[:_MOST_LINES], *([f"and {more} more"] if more > 0 else [])])


def settings_of(policy: Policy) -> dict[str, Any]:
    return {key: getattr(policy._core, key) for key in core.POLICY_SETTINGS if key != "name"}


def words(setting: Any) -> str:
    """A setting as it is printed."""
    if isinstance(setting, list):
        return ", ".join(setting)
    return ("off", "on")[setting] if isinstance(setting, bool) else str(setting)


def _limited(policy: Policy) -> dict[str, str]:
    """The list of each name that is limited to modules."""
    return {str(entry): entry.list for entry in policy._core.entries if entry.modules}


def _of_overload(policy: Policy, overload: str) -> str:
    entry = policy._core.resolve_overload(overload).entry
    return "rest" if entry is None else entry.list


def action_of(policy: Policy, entry: core.Entry) -> str:
    """What a policy does with an op; with that of an entry for one low dtype, where that is its low dtype."""
    return (policy.with_low_dtype(entry.low_dtype) if entry.low_dtype else policy)._rule(entry.op).action
